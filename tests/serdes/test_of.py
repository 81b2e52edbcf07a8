"""`of`: the serde of a program's own type."""

from __future__ import annotations

import enum
import json
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic.v1
import pytest
from hypothesis import strategies as st
from msgspec import Meta, Struct, defstruct

from penstock import ConfigError, ProductionError, Serde, SerdeError, Topology, WrappingSerde
from penstock.plugins.serdes.of import of
from penstock.plugins.serdes.typed.read_back import equality_is_exact
from penstock.plugins.serdes.typed.shipped import classes_inside
from penstock.plugins.testing import TopologyTestDriver
from penstock.plugins.testing.contracts.serde import SerdeContract
from penstock.record import OutputBatch

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


@dataclass(frozen=True)
class Wrapped(Line):
    """A line with a field of its own."""

    paper: str = "red"


class Clock(NamedTuple):
    """A time in a zone has no offset without a day."""

    rings: time


@dataclass(eq=False)
class Anything:
    what: Any = None


@dataclass
class Loose:
    """Two that differ in `note` are equal."""

    id: int
    note: str = field(default="", compare=False)


class ById(Struct):
    id: int
    note: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ById) and self.id == other.id


class Aliased(pydantic.BaseModel):
    id: int = pydantic.Field(0, validation_alias="identity")


class InBase64(pydantic.BaseModel, ser_json_bytes="base64"):
    data: bytes


class Secret(pydantic.BaseModel):
    word: pydantic.SecretStr


class Holder(pydantic.BaseModel):
    held: list[Aliased | InBase64 | Line]


class Doubled(pydantic.BaseModel):
    """Not read as it was: each reading doubles it."""

    amount: int

    @pydantic.field_validator("amount")
    @classmethod
    def _double(cls, amount: int) -> int:
        return amount * 2


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (list[Line], [A_LINE, Wrapped("tea", Decimal(1))], r"\[1\] is Wrapped.*Line.* would be read back"),
        (Order, replace(AN_ORDER, address={"city": "Ghent", "country": "BE"}), "address.country is 'BE', and nothing"),  # type: ignore[arg-type]
        (dict[str, str], {"at": Decimal("1.5")}, r"at is Decimal\('1.5'\), and '1.5' would"),
        (list[date], ["2024-02-29"], r"\[0\] is '2024-02-29', and datetime.date"),
        (list[time], [time(1, tzinfo=ZoneInfo("Europe/Brussels"))], r"\[0\] is datetime.time"),
        (Clock, Clock(time(1, tzinfo=ZoneInfo("Europe/Brussels"))), r"\[0\] is datetime.time"),
        (list[float], [2**53 + 1], r"\[0\] is 9007199254740993, and 9007199254740992.0"),
        (set[str], {UUID(int=1)}, "the value is UUID"),
        (Anything, Anything({"at": date.min}), "what.at is datetime.date"),
        (Anything, Anything(Loose(1)), "what is Loose"),
        (Loose, Loose(1, Status.OPEN), "note is <Status.OPEN: 'open'>, and 'open'"),  # type: ignore[arg-type]
        (list[ById], [ById(1, UUID(int=1))], r"\[0\].note is UUID"),  # type: ignore[arg-type]
        (Aliased, Aliased(identity=3), "id is 3, and 0 would be read back"),  # type: ignore[call-arg]
        (InBase64, InBase64(data=b"abc"), "data is b'abc', and b'YWJj' would"),
        (Secret, Secret(word=pydantic.SecretStr("s")), "word is SecretStr"),
        (Holder, Holder(held=[A_LINE, InBase64(data=b"abc")]), r"held\[1\].data is b'abc'"),
        (Doubled, Doubled(amount=2), "amount is 4, and 8 would"),
    ],
)  # fmt: skip
def test_what_would_be_lost_is_refused_with_its_path(kind: Any, value: Any, expected: str) -> None:
    with pytest.raises(SerdeError, match=expected):
        of(kind).serialize(value)


class Open(pydantic.BaseModel, extra="allow"):
    id: int
    _seen: list[int] = pydantic.PrivateAttr(default_factory=list)
    hidden: str = pydantic.Field("", exclude=True)


_OPEN = Open(id=1, colour="red", hidden="not written by declaration")  # type: ignore[call-arg]
_OPEN._seen.append(1)
_REPEATED_HOUR = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Brussels"), fold=1)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (list[datetime], [_REPEATED_HOUR]),
        (list[Decimal], [Decimal("NaN"), Decimal("1.50"), Decimal("-0")]),
        (dict[str, Sequence[int]], {"a": (1, 2)}),
        (Anything, Anything([1, (2, {"a": None})])),
        (dict[str, float], {"a": 3, "b": -0.0}),
        (list[Loose], [Loose(1, "kept")]),
        (list[ById], [ById(1, "kept")]),
        (Open, _OPEN),
        (Line | None, A_LINE),
        (Any, {"a": [1, None, "b"]}),
    ],
)  # fmt: skip
def test_what_comes_back_alike_is_written(kind: Any, value: Any) -> None:
    serde = of(kind)
    data = serde.serialize(value)
    assert serde.serialize(serde.deserialize(data)) == data.replace(b'{"a":3,', b'{"a":3.0,')


def test_a_class_far_inside_is_looked_at() -> None:
    """What typing makes for `list[Annotated[...]]` lives for a moment, and another object gets its id."""
    kind: Any = Loose
    for _ in range(12):
        kind = make_dataclass("Outer", [("held", list[Annotated[kind, "held"]])])
        assert not equality_is_exact(kind)
        assert Loose in classes_inside(kind)


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
        (Annotated[Payment, Meta(title="P")], {"type": "Payment", "amount": "1", "vat": 2}, "vat"),
        (list[Annotated[Line, Meta(title="L")]], [{"sku": "a", "price": "1", "vat": 2}], "[0].vat"),
        (defstruct("Row", [("sku", str)], array_like=True), ["a", 2], "[1]"),
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
    make, (made_by, kind, refuses, _, is_for_values) = pickle.loads(pickle.dumps(of(Refund))).__reduce__()
    with pytest.raises(ConfigError, match="Make it a dataclass, or put it into a package"):
        make(made_by, kind, refuses, of(Payment).written_form(), is_for_values)


# ---------------------------------------------------------------- changed types


def fields(**kinds: Any) -> Any:
    """A dataclass with fields of these types; a pair is a type and a default."""
    annotations = {name: each[0] if isinstance(each, tuple) else each for name, each in kinds.items()}
    defaults = {name: each[1] for name, each in kinds.items() if isinstance(each, tuple)}
    return dataclass(type("Row", (), {"__annotations__": annotations, **defaults}))


def model(**kinds: Any) -> Any:
    """A pydantic model with fields of these types."""
    make: Any = pydantic.create_model
    return make("Row", **{name: (kind, ...) for name, kind in kinds.items()})


def matching(pattern: str) -> Any:
    """Text that has to match, for dataclasses and for models."""
    return Annotated[str, Meta(pattern=pattern), pydantic.Field(pattern=pattern)]


def keyed(kind: Any) -> Any:
    """A dict with keys of a type."""
    return dict[kind, int]


def bounded(**bounds: Any) -> Any:
    """A Decimal of a model with bounds."""
    return Annotated[Decimal, pydantic.Field(**bounds)]


class Pair(NamedTuple):
    x: int


class Reordered(NamedTuple):
    y: int
    x: int


class Renamed(NamedTuple):
    a: int
    y: int = 0


class ModelOfBytes(pydantic.BaseModel, ser_json_bytes="base64", val_json_bytes="base64"):
    a: bytes


class ModelOfText(pydantic.BaseModel):
    a: str


class ModelOfPoint(pydantic.BaseModel):
    a: Point


class ModelOfReordered(pydantic.BaseModel):
    a: Reordered


class Node(NamedTuple):
    value: int
    next: Node | None = None


def tagged(name: str, key: Any) -> Any:
    """Return a class of a union, with a dict of such keys."""
    return defstruct(name, [("a", dict[key, int])], tag=name)


FITS: list[tuple[Any, Any]] = [
    (fields(a=int), fields(a=int, b=(str, ""))),
    (tagged("A", int) | tagged("B", str), tagged("B", str) | tagged("A", int)),
    (tagged("A", int), tagged("A", int) | tagged("B", str)),
    (tagged("A", int) | None, None | tagged("A", int) | tagged("B", date)),
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
    (Point, Renamed),
    (fields(a=date), fields(a=str)),
    (fields(a=dict[date, int]), fields(a=dict[str, int])),
    (fields(a=dict[int, int]), fields(a=dict[float, int])),
    (fields(a=dict[Literal["x"], int]), fields(a=dict[Literal["x", "y"], int])),
    (fields(a=matching("^a")), fields(a=str)),
    (fields(a=matching("^a")), fields(a=matching("^a"), b=(dict[int, int] | None, None))),
    (model(a=dict[int, int]), model(a=dict[float, int])),
    (model(a=matching("^a")), model(a=matching("^a"))),
    (model(a=Decimal), model(a=Decimal | None)),
    (model(a=Decimal), model(a=Decimal | str)),
    (model(a=Decimal), model(a=float | str)),
    (model(a=int), model(a=Decimal)),
    (model(a=float), model(a=Decimal)),
    (model(a=bounded(max_digits=4)), model(a=bounded(max_digits=5))),
    (model(a=bounded(ge=0)), model(a=Decimal)),
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
    (Point, Reordered, "field '[0]' was 'x' and is 'y': rows have the fields in order"),
    (ModelOfPoint, ModelOfReordered, "field 'a[0]' was 'X' and is 'Y'"),
    (fields(a=bytes), fields(a=str), "field 'a' was base64 and is string"),
    (fields(a=str), fields(a=bytes), "field 'a' was string and is base64"),
    (ModelOfBytes, ModelOfText, "field 'a' was base64url and is string"),
    (Point, Pair, "the value has maxItems 1 and had 2"),
    (Payment | Refund, Payment, "field 'type' can no longer be 'Refund'"),
    (fields(a=Line | None, b=Line | None), fields(a=Order | None, b=Order | None), "field 'a.sku' is gone"),
    (Customer, Visit, "field 'at' is new"),
    (fields(a=dict[str, int]), fields(a=dict[date, int]), "field 'a (keys)' was string and is date"),
    (fields(a=dict[str, int]), fields(a=dict[int, int]), "field 'a (keys)' was string and is integer"),
    (fields(a=dict[int, int]), fields(a=dict[str, int]), "field 'a (keys)' was integer and is string"),
    (fields(a=list[dict[str, int]]), fields(a=list[dict[UUID, int]]), "field 'a[] (keys)' was string and is uuid"),
    (fields(a=dict[str, dict[str, int]]), fields(a=dict[str, dict[Status, int]]), "field 'a[...] (keys)' was string"),
    (dict[Literal["x", "y"], int], dict[Literal["x"], int], "field '(keys)' can no longer be 'y'"),
    (tagged("A", int) | tagged("B", date), tagged("A", date) | tagged("B", date), "field 'a (keys)' was integer"),
    (model(a=dict[str, int]), model(a=dict[int, int]), "field 'a (keys)' was string and is integer"),
    (model(a=dict[Decimal, int]), model(a=dict[date, int]), "field 'a (keys)' was decimal and is date"),
    (model(a=str), model(a=Decimal), "field 'a' was string and is decimal"),
    (model(a=str | None), model(a=Decimal | None), "field 'a' was string and is decimal"),
    (model(a=dict[str, int]), model(a=dict[Decimal, int]), "field 'a (keys)' was string and is decimal"),
    (model(a=float | str), model(a=Decimal), "field 'a' was string and is decimal"),
    (model(a=list[str]), model(a=list[Decimal]), "field 'a[]' was string and is decimal"),
    (model(a=UUID), model(a=Decimal), "field 'a' was uuid and is decimal"),
    (model(a=Decimal), model(a=bounded(ge=0)), "field 'a' has minimum 0.0 and had none"),
    (model(a=bounded(max_digits=5)), model(a=bounded(max_digits=4)), "field 'a' has maxDigits 4 and had 5"),
    (
        model(a=bounded(max_digits=5, decimal_places=2)),
        model(a=bounded(max_digits=5, decimal_places=3)),
        "field 'a' has maxWholeDigits 2 and had 3",
    ),
    (fields(a=str), fields(a=matching("^a")), "field 'a' has the pattern '^a' and had none"),
    (fields(a=Literal["a", "b"]), fields(a=matching("^a")), "field 'a' has the pattern '^a' and had none"),
    (
        fields(a=list[Literal["a", "b"] | None]),
        fields(a=list[matching("^a") | None]),  # type: ignore[misc]
        "field 'a[]' was one of 'a', 'b' or null and is string",
    ),
    (fields(a=matching("^a")), fields(a=matching("^b")), "field 'a' has the pattern '^b' and had '^a'"),
    (fields(a=dict[str, int]), fields(a=keyed(matching("^a"))), "field 'a (keys)' has the pattern '^a'"),
    (model(a=str), model(a=matching("^a")), "field 'a' has the pattern '^a' and had none"),
]  # fmt: skip


OLD_DECIMAL = (
    '{"$patterns":true,"properties":{"a":{"anyOf":[{"type":"number"},{"type":"string"}]}},"required":["a"],'
    '"type":"object"}'
)


@pytest.mark.parametrize(("before", "now"), FITS)
def test_rows_of_a_type_that_was_extended_are_read(before: Any, now: Any) -> None:
    assert of(now).unreadable(of(before).written_form()) == ""


@pytest.mark.parametrize(("before", "now", "expected"), DIFFERS)
def test_what_older_rows_do_not_follow_is_said(before: Any, now: Any, expected: str) -> None:
    assert expected in of(now).unreadable(of(before).written_form())


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (fields(a=matching("^a")), '{"properties":{"a":{"type":"string"}},"required":["a"],"type":"object"}'),
        (dict[date, int], '{"additionalProperties":{"type":"integer"},"type":"object"}'),
        (keyed(matching("^a")), '{"additionalProperties":{"type":"integer"},"propertyNames":{},"type":"object"}'),
        (model(a=matching("^a")), '{"properties":{"a":{"type":"string"}},"required":["a"],"type":"object"}'),
        (
            model(a=dict[int, int]),
            '{"properties":{"a":{"additionalProperties":{"type":"integer"},"type":"object"}},"required":["a"],'
            '"type":"object"}',
        ),
        (
            model(a=dict[date, int]),
            '{"properties":{"a":{"additionalProperties":{"type":"integer"},"propertyNames":{"format":"date"},'
            '"type":"object"}},"required":["a"],"type":"object"}',
        ),
        (model(a=Decimal), OLD_DECIMAL),
        (
            model(a=bounded(ge=0, max_digits=5)),
            '{"$patterns":true,"properties":{"a":{"anyOf":[{"minimum":0.0,"type":"number"},{"type":"string"}]}},'
            '"required":["a"],"type":"object"}',
        ),
        (
            model(a=dict[Decimal, int]),
            '{"$patterns":true,"properties":{"a":{"additionalProperties":{"type":"integer"},"keys":{"anyOf":'
            '[{"type":"number"},{"type":"string"}]},"type":"object"}},"required":["a"],"type":"object"}',
        ),
    ],
)
def test_forms_that_older_versions_saved_of_a_type_are_those_of_the_type(kind: Any, form: str) -> None:
    assert of(kind).unreadable(f"of({form})") == ""


def test_a_form_without_the_format_of_decimals_tells_them_from_text() -> None:
    """Older versions saved the text of a Decimal beside its number, and text alone."""
    old = f"of({OLD_DECIMAL})"
    assert of(model(a=Decimal | None)).unreadable(old) == of(model(a=Decimal)).unfindable(old) == ""
    text = '{"$patterns":true,"properties":{"a":{"type":"string"}},"required":["a"],"type":"object"}'
    assert "field 'a' was string and is decimal" in of(model(a=Decimal)).unreadable(f"of({text})")
    assert "field 'a' has minimum 0.0 and had none" in of(model(a=bounded(ge=0))).unreadable(old)


KEYS: list[tuple[Any, list[Any], str]] = [
    (date, [date(2024, 2, 29), date(2023, 1, 1)], '{"2023-01-01":0,"2024-02-29":0}'),
    (datetime, [datetime(2024, 2, 29, 1, tzinfo=UTC)], '{"2024-02-29T01:00:00Z":0}'),
    (int, [10, -2, 2**70], '{"-2":0,"10":0,"1180591620717411303424":0}'),
    (float, [1.5], '{"1.5":0}'),
    (Decimal, [Decimal("1.50")], '{"1.50":0}'),
    (UUID, [UUID(int=1)], '{"00000000-0000-0000-0000-000000000001":0}'),
    (Status, [Status.PAID, Status.OPEN], '{"open":0,"paid":0}'),
    (bytes, [b"x"], '{"eA==":0}'),
    (Literal[1, 2], [2, 1], '{"1":0,"2":0}'),
    (str, ["b", "a"], '{"a":0,"b":0}'),
]


@pytest.mark.parametrize(("kind", "keys", "data"), KEYS, ids=[str(kind) for kind, _, _ in KEYS])
def test_keys_of_a_dict_have_any_type_that_has_a_text(kind: Any, keys: list[Any], data: str) -> None:
    serde = of(dict[kind, int])
    assert json.loads(data) == json.loads(serde.serialize(dict.fromkeys(keys, 0)))
    for order in (keys, keys[::-1]):
        assert serde.serialize(dict.fromkeys(order, 0)) == data.encode()
    found = serde.deserialize(data.encode())
    assert found == dict.fromkeys(keys, 0)
    assert {type(each) for each in found} == {type(each) for each in keys}
    row = fields(a=dict[kind, list[dict[kind, int]]])
    value = row({key: [{key: 1}] for key in keys})
    assert of(row).deserialize(of(row).serialize(value)) == value


@pytest.mark.parametrize("kind", [tuple[int, str], bool, None, Point, frozenset[int]], ids=str)
def test_keys_that_have_no_text_are_refused_at_once(kind: Any) -> None:
    for outer in (dict[kind, int], fields(a=list[dict[kind, int]])):
        with pytest.raises(ConfigError, match="the keys of a dict are text in JSON, so they cannot be"):
            of(outer)


class Number(enum.Enum):
    ONE = 1


@pytest.mark.parametrize("kind", [tuple[int, str], None, Point, frozenset[int], Literal[1], Number], ids=str)
def test_keys_that_pydantic_does_not_read_back_are_refused_at_once(kind: Any) -> None:
    with pytest.raises(ConfigError, match="the keys of a dict are text in JSON, so they cannot be"):
        of(model(a=list[dict[kind, int]]))


@pytest.mark.parametrize(
    "key", [1, 1.5, True, "x", date(2024, 2, 29), UUID(int=1), Decimal("1.50"), Status.PAID], ids=str
)
def test_keys_of_dicts_in_models(key: Any) -> None:
    kind = model(a=keyed(type(key)))
    assert of(kind).deserialize(of(kind).serialize(kind(a={key: 1}))) == kind(a={key: 1})


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
