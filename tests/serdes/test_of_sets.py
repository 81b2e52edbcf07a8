"""Sets in types of `of`: equal ones have the same bytes in each process, whatever their elements are."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import permutations
from typing import Any, NamedTuple

import pytest
from msgspec import Struct

from penstock import Processor, Record, Topology, key_value_store
from penstock.plugins.serdes.of import of
from penstock.plugins.testing import TopologyTestDriver


class Colour(enum.Enum):
    """Its members cannot be compared."""

    RED = "red"
    BLUE = "blue"
    ODD = "blue or red"


class Place(NamedTuple):
    x: int
    name: str | None = None


@dataclass(frozen=True)
class Tag:
    name: str
    marks: frozenset[int] = frozenset()


class Added(Struct, frozen=True, tag=True):
    by: frozenset[str]
    at: Colour = Colour.RED


class Gone(Struct, frozen=True, tag=True):
    by: frozenset[frozenset[str]]


class Line(Struct, frozen=True, tag=True, array_like=True):
    by: frozenset[str]


class Lines(Struct, frozen=True, tag=True, array_like=True):
    by: frozenset[frozenset[str]]


@dataclass(frozen=True)
class Basket:
    """Its fields are not in the order of their names."""

    tags: frozenset[Tag]
    colours: frozenset[Colour] = frozenset(Colour)


def sets(*numbers: int) -> list[frozenset[int]]:
    return [frozenset({each}) for each in numbers]


SETS: list[tuple[Any, list[Any], str]] = [
    (Colour, list(Colour), '["blue","blue or red","red"]'),
    (frozenset[int], sets(8, 16, 24, 1), "[[1],[8],[16],[24]]"),
    (tuple[frozenset[int], int], [(each, 1) for each in sets(8, 16, 24)], "[[[8],1],[[16],1],[[24],1]]"),
    (Place, [Place(1), Place(1, "a"), Place(0, "b")], '[[0,"b"],[1,null],[1,"a"]]'),
    (Tag, [Tag("b"), Tag("a", frozenset({8, 16, 1}))], '[{"name":"a","marks":[1,8,16]},{"name":"b","marks":[]}]'),
    (int | str | None, [10, "1", None, 9], '[null,9,10,"1"]'),
    (datetime, [datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)],
     '["2024-01-01T00:00:00","2024-01-01T00:00:00Z"]'),
    (Added | Gone, [Added(frozenset("ba")), Gone(frozenset({frozenset("dc"), frozenset("cb")}))],
     '[{"type":"Added","by":["a","b"],"at":"red"},{"type":"Gone","by":[["b","c"],["c","d"]]}]'),
    (Line | Lines, [Line(frozenset("ba")), Lines(frozenset({frozenset("dc"), frozenset("cb")}))],
     '[["Line",["a","b"]],["Lines",[["b","c"],["c","d"]]]]'),
    (Decimal, [Decimal("10"), Decimal("9.50")], '["9.50","10"]'),
    (timedelta, [timedelta(days=10), timedelta(days=9)], '["P9D","P10D"]'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "elements", "data"), SETS)
def test_equal_sets_have_the_same_bytes(kind: Any, elements: list[Any], data: str) -> None:
    alone, inside = of(frozenset[kind]), of(dict[int, frozenset[kind]])  # fields beside such a dict are in order, too
    written = set()
    for each in permutations(elements):
        made = frozenset(each)
        assert alone.serialize(made).decode() == data
        assert alone.serialize(alone.deserialize(data.encode())).decode() == data
        written.add(inside.serialize({1: made}))
        written.add(inside.serialize(inside.deserialize(inside.serialize({1: made}))))
    assert len(written) == 1


def test_fields_beside_such_a_set_keep_their_order() -> None:
    basket = Basket(frozenset({Tag("b"), Tag("a")}))
    assert of(Basket).serialize(basket).decode() == (
        '{"tags":[{"name":"a","marks":[]},{"name":"b","marks":[]}],"colours":["blue","blue or red","red"]}'
    )


Groups = frozenset[frozenset[int]]


class Count(Processor):
    """Counts by groups of numbers."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        groups = frozenset(frozenset({each}) for each in record.value)
        store.put(groups, (store.get(groups) or 0) + 1)


def test_a_row_is_found_by_an_equal_set_of_sets() -> None:
    topology = Topology().add_source("in", "in", key_serde="str", value_serde="msgpack")
    store = key_value_store("counts", key_serde=of(Groups), value_serde="int")
    topology.add_processor("count", Count, "in", stores=[store])
    numbers = [8, 16, 24, 1]
    with TopologyTestDriver(topology) as driver:
        for order in permutations(numbers):
            driver.pipe("in", "a", list(order))
        driver.reopen()
        found = list(driver.store("counts").all())
    assert found == [(frozenset(sets(*numbers)), 24)]


def test_keys_with_sets_of_sets_that_older_versions_wrote_are_refused() -> None:
    serde = of(Groups)
    form = serde.written_form()
    before = form.replace('"$sets":true,', "")
    assert before != form and serde.unreadable(before) == ""
    assert serde.unfindable(before).endswith("sets inside of sets are written in another order than before")
    assert serde.unfindable(form) == ""


def test_a_new_field_may_have_a_set_that_python_does_not_sort_as_its_default() -> None:
    @dataclass(frozen=True)
    class Before:
        tags: frozenset[Tag]

    assert of(Basket).unreadable(of(Before).written_form()) == ""


_SCHEMAS = """
import enum
from dataclasses import dataclass
import pydantic
from penstock.serdes import JsonSchemaSerde
class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"
@dataclass(frozen=True)
class Names:
    names: frozenset[str] = frozenset({"x", "y", "z", "w"})
    colours: frozenset[Colour] = frozenset(Colour)
    groups: frozenset[frozenset[str]] = frozenset({frozenset("ab"), frozenset("cd"), frozenset("ef")})
class Model(pydantic.BaseModel):
    names: frozenset[str] = frozenset({"x", "y", "z", "w"})
    colours: set[Colour] | None = set(Colour)
print(JsonSchemaSerde(Names).schema, JsonSchemaSerde(Model).schema)
"""


def test_the_schema_of_a_type_is_the_same_in_each_process() -> None:
    """Another text would be another schema for a registry, with an id of its own in the bytes of keys."""
    found = {
        subprocess.run(
            [sys.executable, "-c", _SCHEMAS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1 and b'"default":["w","x","y","z"]' in next(iter(found))
