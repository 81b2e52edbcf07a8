"""`of`: the serde of a program's own type."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

import pydantic.v1
import pytest
from hypothesis import strategies as st

from penstock import ConfigError, ProductionError, SerdeError, Topology
from penstock.plugins.serdes.of import of
from penstock.plugins.testing import TopologyTestDriver
from penstock.plugins.testing.contracts.serde import SerdeContract
from penstock.record import OutputBatch
from penstock.serde import Serde, WrappingSerde

from .typed_values import Address, Customer, Line, Order, Payment, Point, Refund, Status, Visit

A_LINE = Line("tea", Decimal("1.50"))
AN_ORDER = Order(UUID(int=1), date(2024, 2, 29), [A_LINE])
_text = st.text(st.characters(codec="utf-8"), max_size=8)
_money = st.decimals(allow_nan=False, allow_infinity=False, places=2)
_longs = st.integers(-(2**63), 2**63 - 1)
_lines = st.builds(Line, _text, _money, _longs)
_addresses = st.builds(Address, city=_text) | st.builds(Address, city=_text, street=_text)
_flat = {
    "id": st.uuids(),
    "day": st.dates(),
    "lines": st.lists(_lines, max_size=2),
    "status": st.sampled_from(Status),
    "where": st.none() | st.builds(Point, _longs, _longs),
    "address": st.none() | _addresses,
    "tags": st.sets(_text, max_size=3),
    "counts": st.dictionaries(_text, _longs, max_size=3).map(lambda found: dict(sorted(found.items()))),
    "weight": st.floats(allow_nan=False, allow_infinity=False),
    "kind": st.sampled_from(["new", "used"]),
}
_orders = st.builds(Order, **_flat, refund_of=st.none() | st.just(AN_ORDER))
_customers = st.builds(
    lambda **fields: Customer.model_validate(fields, by_alias=True),
    name=_text, born=st.none() | st.dates(), orders=st.lists(_lines, max_size=2), **{"e-mail": _text},
)  # fmt: skip


class TestDataclass(SerdeContract):
    serde = staticmethod(lambda: of(Order))
    values = _orders
    refused = (A_LINE, {"id": 1}, Order(1, date.min, []), Order(UUID(int=1), date.min, [], weight=math.nan))  # type: ignore[arg-type]
    foreign = st.binary(max_size=64) | st.just(b'{"id": null}') | st.just(b"{}")


class TestRefusingExtraFields(SerdeContract):
    serde = staticmethod(lambda: of(Line, extra="refuse"))
    values = _lines
    refused = (AN_ORDER, None)


class TestUnionOfStructs(SerdeContract):
    serde = staticmethod(lambda: of(Payment | Refund))
    values = st.builds(Payment, _money, st.none() | _lines) | st.builds(Refund, _money)
    refused = (object(), 1, "text", {"amount": 1})


class TestNamedTuple(SerdeContract):
    serde = staticmethod(lambda: of(Point))
    values = st.builds(Point, _longs, _longs)
    refused = ((1, 2), Point("a"))  # type: ignore[arg-type]


class TestListOfDicts(SerdeContract):
    serde = staticmethod(lambda: of(list[Address]))
    values = st.lists(_addresses, max_size=3)
    refused = ([{"town": "Ghent"}], {"city": "Ghent"}, [None])


class TestModel(SerdeContract):
    serde = staticmethod(lambda: of(Customer))
    values = _customers
    refused = (A_LINE, Customer.model_construct(name=1), {"name": "anna"})


class TestDataclassWithModel(SerdeContract):
    serde = staticmethod(lambda: of(Visit))
    values = st.builds(Visit, _customers, _money)
    refused = (Visit(A_LINE, Decimal(1)),)  # type: ignore[arg-type]


def test_the_bytes_are_json() -> None:
    order = Order(UUID(int=1), date(2024, 2, 29), [A_LINE], where=Point(1, 2), tags={"b", "a"}, counts={"z": 1, "y": 2})
    assert json.loads(of(Order).serialize(order)) == {
        "id": "00000000-0000-0000-0000-000000000001", "day": "2024-02-29",
        "lines": [{"sku": "tea", "price": "1.50", "count": 1}], "status": "open", "where": [1, 2], "address": None,
        "tags": ["a", "b"], "counts": {"y": 2, "z": 1}, "weight": 0.0, "kind": "new", "refund_of": None,
    }  # fmt: skip
    assert of(Customer).serialize(Customer(name="anna", **{"e-mail": "a@b"})) == (  # type: ignore[arg-type]
        b'{"name":"anna","born":null,"orders":[],"e-mail":"a@b"}'
    )


_ORDER = json.loads(of(Order).serialize(AN_ORDER))


@pytest.mark.parametrize(
    ("kind", "found", "expected"),
    [
        (Order, {**_ORDER, "day": None}, "serde 'of(Order)': day: Expected 'date', found 'null'; found b'{"),
        (Order, {**_ORDER, "lines": [{"sku": "a", "price": "1"}, {"sku": "b"}]},
         "lines[1]: Object missing required field 'price'"),
        (Order, {**_ORDER, "lines": [{"sku": 5, "price": "1"}]}, "lines[0].sku: Expected 'str', found 'int'"),
        (Order, {**_ORDER, "status": "lost"}, "status: Invalid enum value 'lost'"),
        (Order, {}, "Object missing required field 'id'"),
        (Order, [1], "Expected 'object', found 'array'"),
        (Point, [1, 2, 3], "Expected 'array' of length 1 to 2"),
        (Customer, {}, "serde 'of(Customer)': name: Field required, found {}; found b'{}'"),
        (Customer, {"name": "a", "orders": [{"sku": "b"}]}, "orders[0].price: Field required"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_what_was_expected_and_found(kind: Any, found: Any, expected: str) -> None:
    with pytest.raises(SerdeError) as caught:
        of(kind).deserialize(json.dumps(found).encode())
    assert expected in str(caught.value)
    assert "give a field that may be absent a default" in str(caught.value)


def test_a_wrong_field_is_refused_where_it_is_written() -> None:
    wrong = Order(UUID(int=1), date.min, [Line("tea", "dear")])  # type: ignore[arg-type]
    with pytest.raises(SerdeError, match=r"of\(Order\)': cannot write Order.*: lines\[0\].price: Invalid decimal"):
        of(Order).serialize(wrong)
    with pytest.raises(SerdeError, match=r"of\(Order\)': expected Order, found Line Line"):
        of(Order).serialize(A_LINE)  # type: ignore[arg-type]

    class Gift(Order):
        pass

    with pytest.raises(SerdeError, match="expected Order, found Gift"):
        of(Order).serialize(Gift(**vars(AN_ORDER)))


def test_absent_fields_get_their_defaults() -> None:
    read = of(Order).deserialize(
        b'{"id": "00000000-0000-0000-0000-000000000001", "day": "2024-02-29", "lines": [{"sku": "tea", "price": 1.5}]}'
    )
    assert read == AN_ORDER


@pytest.mark.parametrize(
    ("kind", "found", "path"),
    [
        (Order, {**_ORDER, "colour": 1}, "colour"),
        (Order, {**_ORDER, "lines": [{"sku": "a", "price": "1", "vat": 2}]}, "lines[0].vat"),
        (Order, {**_ORDER, "refund_of": {**_ORDER, "address": {"city": "Ghent", "country": "BE"}}},
         "refund_of.address.country"),
        (dict[str, Line], {"a": {"sku": "a", "price": "1", "vat": 2}}, "['a'].vat"),
        (tuple[Line, int], [{"sku": "a", "price": "1", "vat": 2}, 1], "[0].vat"),
        (Payment | Refund, {"type": "Payment", "amount": "1", "vat": 2}, "vat"),
        (Customer, {"name": "a", "vat": 2}, "vat"),
        (Visit, {"who": {"name": "a", "vat": 2}, "at": 1}, "who.vat"),
    ],
)  # fmt: skip
def test_extra_fields_are_ignored_or_refused(kind: Any, found: Any, path: str) -> None:
    data = json.dumps(found).encode()
    assert of(kind).deserialize(data) is not None
    with pytest.raises(SerdeError) as caught:
        of(kind, extra="refuse").deserialize(data)
    assert f"{path}: " in str(caught.value)


# ---------------------------------------------------------------- declarations


class Unreadable:
    pass


@dataclass
class WithUnreadable:
    what: Unreadable


def test_types_without_json_are_refused_when_they_are_declared() -> None:
    @dataclass
    class Local:
        what: NowhereToBeFound  # type: ignore[name-defined]  # noqa: F821

    for kind, expected in (
        (Unreadable, r"of\(Unreadable\): JSON has nothing for Unreadable; expected a dataclass"),
        (WithUnreadable, r"of\(WithUnreadable\): JSON has nothing for Unreadable"),
        (dict[str, object], "JSON has nothing for object"),
        (Line | Point | Order, "may not contain more than one dataclass"),
        ("Order", "found the text 'Order': pass the class itself"),
        (Local, "cannot be read: name 'NowhereToBeFound' is not defined"),
    ):
        with pytest.raises(ConfigError, match=expected):
            of(kind)
    with pytest.raises(ConfigError, match="extra: expected 'ignore' or 'refuse', found 'allow'"):
        of(Line, extra="allow")  # type: ignore[call-overload]


def test_a_model_of_pydantic_1_is_refused() -> None:
    class Model(pydantic.v1.BaseModel):
        id: int

    @pydantic.v1.dataclasses.dataclass
    class Other:
        id: int

    for kind in (Model, list[Model], Other):
        with pytest.raises(ConfigError, match=r"of: \S+ is a model of Pydantic 1 \(pydantic.v1\)"):
            of(kind)


def test_a_struct_that_travels_without_its_fields_is_refused() -> None:
    """As a class of a script does: cloudpickle sends it by value, and msgspec's fields are not part of it."""
    make, (made_by, kind, refuses, _) = pickle.loads(pickle.dumps(of(Refund))).__reduce__()
    with pytest.raises(ConfigError, match="Make it a dataclass, or put it into a package"):
        make(made_by, kind, refuses, of(Payment).written_form())


# ---------------------------------------------------------------- changed types


def fields(**kinds: Any) -> Any:
    """A dataclass with fields of these types; a pair is a type and a default."""
    annotations = {name: each[0] if isinstance(each, tuple) else each for name, each in kinds.items()}
    defaults = {name: each[1] for name, each in kinds.items() if isinstance(each, tuple)}
    return dataclass(type("Row", (), {"__annotations__": annotations, **defaults}))


class Pair(NamedTuple):
    x: int


class Node(NamedTuple):
    value: int
    next: Node | None = None


FITS: list[tuple[Any, Any]] = [
    (fields(a=int), fields(a=int, b=(str, ""))),
    (fields(a=int, b=(str, "")), fields(a=int, b=(str, "other"))),
    (fields(a=int), fields(a=float)),
    (fields(a=int), fields(a=int | None)),
    (fields(a=int | None), fields(a=int | str | None)),
    (fields(a=Literal["x"]), fields(a=Literal["x", "y"])),
    (fields(a=Status), fields(a=str)),
    (fields(a=Any), fields(a=Any)),
    (fields(a=int), fields(a=Any)),
    (fields(a=dict[str, int]), fields(a=dict[str, float])),
    (fields(a=set[int]), fields(a=list[int])),
    (fields(a=tuple[int, str]), fields(a=tuple[float, str])),
    (Pair, Point),
    (fields(a=int), dict[str, int]),
    (Payment, Payment | Refund),
    (Node, Node),
]
DIFFERS: list[tuple[Any, Any, str]] = [
    (fields(a=int, b=str), fields(a=int), "field 'b' is gone"),
    (fields(a=int), fields(a=int, b=str), "field 'b' is new and has no default: give it one"),
    (fields(a=int, b=(str, "")), fields(a=int, b=str), "field 'b' had a default, which older rows may need"),
    (fields(a=float), fields(a=int), "field 'a' was number and is integer"),
    (fields(a=int | None), fields(a=int), "field 'a' was integer or null and is integer"),
    (fields(a=Literal["x", "y"]), fields(a=Literal["x"]), "field 'a' can no longer be 'y'"),
    (fields(a=str), fields(a=Status), "field 'a' was string and is one of 'open', 'paid'"),
    (fields(a=str), fields(a=date), "field 'a' was string and is date"),
    (fields(a=Any), fields(a=int), "field 'a' was any and is integer"),
    (fields(a=list[Line]), fields(a=list[Point]), "field 'a[]' was object and is array"),
    (fields(a=list[int]), fields(a=set[int]), "field 'a' was array and is a set"),
    (fields(a=dict[str, int]), fields(a=dict[str, str]), "field 'a[...]' was integer and is string"),
    (fields(a=dict[str, int]), fields(a=Line), "field 'a' was a dict and has fields"),
    (fields(a=tuple[int, str]), fields(a=tuple[int, int]), "field 'a[1]' was string and is integer"),
    (Point, Pair, "the value has maxItems 1 and had 2"),
    (Payment | Refund, Payment, "field 'type' can no longer be 'Refund'"),
    (fields(a=Line | None, b=Line | None), fields(a=Order | None, b=Order | None), "field 'b.sku' is gone"),
    (Customer, Visit, "field 'at' is new"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now"), FITS)
def test_rows_of_a_type_that_was_extended_are_read(before: Any, now: Any) -> None:
    assert of(now).unreadable(of(before).written_form()) == ""


@pytest.mark.parametrize(("before", "now", "expected"), DIFFERS)
def test_what_older_rows_do_not_follow_is_said(before: Any, now: Any, expected: str) -> None:
    assert expected in of(now).unreadable(of(before).written_form())


class _Wrapped(WrappingSerde[Any]):
    def __init__(self, *inner: Serde[Any]) -> None:
        self.one, self.two = inner

    def serialize(self, value: Any) -> bytes:
        raise NotImplementedError

    def deserialize(self, data: bytes) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: _Wrapped(of(dict[str, int]), each)])
def test_a_wrapped_serde_reads_what_its_parts_read(wrap: Callable[[Serde[Any]], Serde[Any]]) -> None:
    before, wider, other = fields(a=int), fields(a=int, b=(Literal['"{, '], '"{, ')), fields(a=str)
    form = _Wrapped(of(dict[str, int]), wrap(of(before))).written_form()
    assert _Wrapped(of(dict[str, int]), wrap(of(wider))).unreadable(form) == ""
    assert "field 'a' was integer and is string" in _Wrapped(of(dict[str, int]), wrap(of(other))).unreadable(form)
    assert "and now has" in _Wrapped(of(int), of(wider)).unreadable("Other(of({}))")
    back = _Wrapped(of(dict[str, int]), wrap(of(wider))).written_form()
    assert "field 'b' is gone" in _Wrapped(of(dict[str, int]), wrap(of(before))).unreadable(back)


# ---------------------------------------------------------------- in a program


def test_an_error_names_the_node_the_topic_and_the_field() -> None:
    topology = Topology().add_source("orders", "shop-orders", value_serde=of(Order)).add_sink(
        "paid", "shop-paid", "orders", value_serde=of(Line)
    )  # fmt: skip
    with (
        TopologyTestDriver(topology) as driver,
        pytest.raises(SerdeError, match=r"node 'orders', at topic 'shop-orders' .*'of\(Order\)': id: Expected 'uuid'"),
    ):
        driver.pipe_raw(OutputBatch("shop-orders", [b"k"], [b'{"id": 5}'], [1], None, [[0]]))
    with (
        TopologyTestDriver(topology) as driver,
        pytest.raises(ProductionError, match=r"node 'paid'.*'shop-paid'.*'of\(Line\)': expected Line, found Order"),
    ):
        driver.pipe("shop-orders", "k", AN_ORDER)
