"""JSON has neither nan nor infinity: serdes that write JSON refuse them, and name the field."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from msgspec import Struct
from pydantic import BaseModel

from penstock import Serde, SerdeError, Topology
from penstock.plugins.serdes.json import JsonSerde
from penstock.plugins.serdes.of import of
from penstock.plugins.serdes.registry.json_schema import JsonSchemaSerde
from penstock.plugins.testing import TopologyTestDriver

NAN, INFINITY = math.nan, math.inf


class Pair(NamedTuple):
    one: float | None
    two: float | None = None


@dataclass
class Line:
    price: float | None
    note: str | None = None


@dataclass
class Order:
    lines: list[Line]
    by_name: dict[str, Pair | None]


class Tagged(Struct):
    price: float | None
    others: set[float | None] = set()


class Model(BaseModel):
    price: float | None
    line: Line | None = None


class InText(BaseModel, ser_json_inf_nan="strings"):
    price: float | None


@pytest.mark.parametrize("number", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize(
    ("serde", "make", "path"),
    [
        (JsonSerde(), lambda number: number, "the value"),
        (JsonSerde(), lambda number: {"a": [None, {"b c": (1.5, number)}]}, "a[1].b c[1]"),
        (JsonSerde(), lambda number: Line(number), "price"),
        (of(float | None), lambda number: number, "the value"),
        (of(Order), lambda number: Order([Line(1.0), Line(number)], {}), "lines[1].price"),
        (of(Order), lambda number: Order([], {"x": None, "y": Pair(1.0, number)}), "by_name.y[1]"),
        (of(Tagged), lambda number: Tagged(number), "price"),
        (of(Tagged), lambda number: Tagged(1.0, {number}), "others"),
        (of(Model), lambda number: Model(price=None, line=Line(number)), "line.price"),
        (JsonSchemaSerde(Line, registry="mock://nan", subject="line"), lambda number: Line(number), "price"),
        (JsonSchemaSerde('{"type": "object"}', registry="mock://nan", subject="any"), lambda number: {"a": [number]},
         "a[0]"),
    ],
)  # fmt: skip
def test_they_are_refused_with_their_field(serde: Serde[Any], make: Any, path: str, number: float) -> None:
    for write in (serde.serialize, serde.serializer()):
        with pytest.raises(SerdeError) as raised:
            write(make(number))
        assert f"{path} is {number}, which JSON does not have" in str(raised.value)
    assert serde.deserialize(serde.serialize(make(2.0))) is not None


def test_a_model_that_writes_them_as_text_keeps_them() -> None:
    serde = of(InText)
    assert math.isnan(serde.deserialize(serde.serialize(InText(price=NAN))).price or 0)
    assert serde.deserialize(serde.serialize(InText(price=INFINITY))) == InText(price=INFINITY)


def test_the_driver_pipes_none_of_them() -> None:
    topology = Topology().add_source("in", "in", value_serde="json").add_sink("out", "out", "in", value_serde="json")
    with TopologyTestDriver(topology) as driver:
        with pytest.raises(SerdeError, match="price is nan, which JSON does not have"):
            driver.pipe("in", "k", {"price": NAN, "note": None})
        driver.pipe("in", "k", {"price": None, "note": "null"})
        assert [value for _, value in driver.read_pairs("out")] == [{"price": None, "note": "null"}]
