"""Keys of a type whose fields were absent where they were read: they are the keys that have the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
from msgspec import Struct

from penstock.dsl import StreamsBuilder
from penstock.plugins.serdes.of import of
from penstock.plugins.testing import TopologyTestDriver

T = TypeVar("T")


@dataclass(frozen=True)
class Customer:
    id: int
    country: str = "be"


@dataclass(frozen=True, slots=True)
class Slots:
    id: int
    country: str = "be"


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """The schema has the field with a default last."""

    country: str = "be"
    id: int
    customer: Customer = Customer(0)
    tags: tuple[int, ...] = field(default=())


@dataclass(frozen=True)
class Named(Generic[T]):
    held: T
    name: str = ""


class Group(NamedTuple):
    customers: frozenset[Customer]
    by_day: dict[int, Customer | None] | None = None


class Row(Struct, frozen=True):
    price: Decimal
    customer: Customer | None = None


@dataclass
class Order:
    customer: Customer


KEYS: list[tuple[Any, bytes, Any]] = [
    (Customer, b'{"id":1}', Customer(1)),
    (Slots, b'{"id":1}', Slots(1)),
    (Mixed, b'{"id":1}', Mixed(id=1)),
    (Mixed, b'{"customer":{"id":2},"id":1}', Mixed(id=1, customer=Customer(2))),
    (Named[Customer], b'{"held":{"id":1}}', Named(Customer(1))),
    (list[Customer], b'[{"id":1},{"country":"nl","id":2}]', [Customer(1), Customer(2, "nl")]),
    (
        Group,
        b'[[{"id":2},{"id":1,"country":"nl"},{"id":1}],{"3":{"id":3},"4":null}]',
        Group(frozenset({Customer(2), Customer(1), Customer(1, "nl")}), {3: Customer(3), 4: None}),
    ),
    (Row, b'{"price":1,"customer":{"id":1}}', Row(Decimal(1), Customer(1))),
    (dict[str, Customer | int], b'{"a":{"id":1},"b":1}', {"a": Customer(1), "b": 1}),
]


@pytest.mark.parametrize(("kind", "data", "made"), KEYS)
def test_a_key_with_an_absent_field_has_the_bytes_of_an_equal_one(kind: Any, data: bytes, made: Any) -> None:
    serde = of(kind)
    read = serde.deserialize(data)
    assert read == made
    written = serde.serialize(read)
    assert written == serde.serialize(made) == serde.serialize(serde.deserialize(written))
    assert serde.deserialize(written) == made
    assert serde.for_values().deserialize(serde.for_values().serialize(read)) == made


def test_a_group_has_the_rows_with_and_without_the_field() -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key_serde="str", value_serde="bytes").map_values(of(Order).deserialize)
    groups = orders.group_by(lambda order: order.customer, key_serde=of(Customer), value_serde=of(Order), name="group")
    groups.count("counts")
    with TopologyTestDriver(builder) as driver:
        for text in (b'{"customer":{"id":1}}', b'{"customer":{"id":1,"country":"be"}}', b'{"customer":{"id":1}}'):
            driver.pipe("orders", "a", text)
        store = driver.store("counts")
        assert [(key, row.value) for key, row in store.all()] == [(Customer(1), 3)]
        assert store.get(Customer(1)).value == 3


def test_fields_are_in_the_form_in_the_order_in_which_they_are_written() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Other:
        id: int
        country: str = "be"
        customer: Customer = Customer(0)
        tags: tuple[int, ...] = field(default=())

    assert of(Other).serialize(Other(id=1)) != of(Mixed).serialize(Mixed(id=1))
    found = of(Other).unfindable(of(Mixed).written_form())
    assert "had its fields in another order: country, id, customer, tags" in found


def test_keys_that_older_versions_wrote_without_such_a_field_are_refused() -> None:
    for kind, is_refused in ((Customer, True), (Mixed, True), (Order, True), (Slots, False)):
        serde = of(kind)
        form = serde.written_form()
        before = form.replace('"$defaults":true,', "")
        assert (before != form) == is_refused
        assert serde.unreadable(before) == serde.unfindable(form) == ""
        found = serde.unfindable(before)
        assert found.endswith("left out of the key, and is written now") if is_refused else found == "", found
