"""The json serde writes all fields of a dataclass, and refuses one that has a field without a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from penstock import SerdeError
from penstock.plugins.serdes.json import JsonSerde
from penstock.plugins.serdes.registry.json_schema import JsonSchemaSerde

SERDE = JsonSerde()


@dataclass
class Order:
    sku: str
    kind: ClassVar[str] = "order"
    total: int = field(init=False)
    count: int = 1
    _cached: int = 0


@dataclass(slots=True)
class Slots:
    sku: str
    total: int = field(init=False)
    count: int = 1


@dataclass
class BelowSlots(Slots):
    note: str = ""


@dataclass
class Node:
    next: Node | None = None


def made(kind: Any, **values: Any) -> Any:
    value = kind("tea")
    for name, each in values.items():
        setattr(value, name, each)
    return value


@pytest.mark.parametrize("kind", [Order, Slots, BelowSlots])
@pytest.mark.parametrize("around", [lambda value: value, lambda value: {"a": [value]}, lambda value: Node(value)])
def test_a_field_without_a_value_is_refused(kind: Any, around: Any) -> None:
    with pytest.raises(SerdeError, match=rf"field 'total' of {kind.__name__} has no value: set it"):
        SERDE.serialize(around(made(kind)))
    assert b'"total":2' in SERDE.serialize(around(made(kind, total=2)))


def test_a_deleted_field_has_the_default_of_its_class_or_none() -> None:
    order = made(Order, total=2)
    del order.count
    assert SERDE.serialize(order) == b'{"sku":"tea","total":2,"count":1}'
    del order.sku
    with pytest.raises(SerdeError, match="field 'sku' of Order has no value"):
        SERDE.serialize(order)


def test_other_dataclasses_are_written_as_before() -> None:
    order = made(Order, total=2)
    assert SERDE.serialize([order, {"a": order}]) == (
        b'[{"sku":"tea","count":1,"total":2},{"a":{"sku":"tea","count":1,"total":2}}]'
    )
    order.more = {"x": None}
    assert SERDE.serialize(order) == b'{"sku":"tea","count":1,"total":2,"more":{"x":null}}'
    assert SERDE.serialize(made(Slots, total=2)) == b'{"sku":"tea","total":2,"count":1}'
    assert SERDE.serialize(made(BelowSlots, total=2)) == b'{"sku":"tea","total":2,"count":1,"note":""}'
    node = Node()
    for _ in range(240):
        node = Node(node)
    assert SERDE.serialize(node).count(b"next") == 241


def test_a_class_is_no_value_and_a_set_is_no_json() -> None:
    for wrong in (Order, {1}, object()):
        with pytest.raises(SerdeError, match="not JSON serializable"):
            SERDE.serialize(wrong)


def test_json_schema_refuses_it_too() -> None:
    serde = JsonSchemaSerde('{"type": "object"}', registry="mock://json-dataclasses", subject="s")
    with pytest.raises(SerdeError, match="field 'total' of Slots has no value"):
        serde.serialize({"a": made(Slots)})
