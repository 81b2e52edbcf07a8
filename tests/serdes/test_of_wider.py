"""Types of `of` that become others, or unions: what is said of rows from before is what happens to them."""

from __future__ import annotations

from dataclasses import make_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from itertools import permutations
from typing import Annotated, Any, Literal, Union
from uuid import UUID

import pydantic
import pytest
from msgspec import Meta

from penstock import SerdeError
from penstock.plugins.serdes.of import of


class Status(Enum):
    A = "a"


class Number(IntEnum):
    ONE = 1


class Small(pydantic.BaseModel):
    x: int


class Large(pydantic.BaseModel):
    x: int
    y: int = 0


class Empty(pydantic.BaseModel):
    x: int = 0


TEXTS = ["", "a", "1", "1.5", "P1D", "2024-02-29", "12:30:00", "2024-02-29T12:00:00Z", str(UUID(int=1)), "YQ=="]
ONE_TEXT: dict[Any, list[Any]] = {
    Literal["a"]: ["a"],
    Status: [Status.A],
    Decimal: [Decimal("1.50")],
    UUID: [UUID(int=1)],
    datetime: [datetime(2024, 2, 29), datetime(2024, 2, 29, 12, tzinfo=UTC)],
    date: [date(2024, 2, 29)],
    time: [time(12, 30), time(12, 30, tzinfo=UTC)],
    timedelta: [timedelta(days=1)],
}
PLAIN: dict[Any, list[Any]] = {
    **ONE_TEXT,
    str: TEXTS,
    int: [0, 1, 10**12],
    float: [1.0, 1.5, 0.0],
    bool: [True, False],
    bytes: [b"a", b"1", b"2024-02-29"],
    Number: [Number.ONE],
    Literal[1]: [1],
}
OTHERS: dict[Any, list[Any]] = {
    Small: [Small(x=1)],
    Large: [Large(x=1), Large(x=1, y=2)],
    Empty: [Empty(), Empty(x=3)],
    dict[str, Any]: [{"x": 1}, {"x": 1, "z": 5}, {}],
    dict[str, int]: [{"x": 1}, {"x": 1, "z": 5}, {}],
    list[int]: [[1]],
    list[str]: [["a"], ["2024-02-29"]],
    set[int]: [{1}],
    Any: ["a", 1, {"x": 1}, [1], "2024-02-29", None, True],
}


def row(kind: Any) -> Any:
    return make_dataclass("Row", [("a", kind)])


def model(kind: Any) -> Any:
    make: Any = pydantic.create_model
    return make("Row", a=(kind, ...))


def optional_dict(kind: Any) -> Any:
    made: Any = dict
    return made[str, model(kind)] | None


SERDES: dict[Any, Any] = {}


def serde(kind: Any) -> Any:
    if kind not in SERDES:
        SERDES[kind] = of(model(kind))
    return SERDES[kind]


@pytest.mark.parametrize("before", [*PLAIN, *OTHERS], ids=str)
def test_a_new_alternative_of_a_model_takes_nothing_that_another_one_wrote(before: Any) -> None:
    old = serde(before)
    rows = {old.serialize(old.value_type(a=each)): each for each in {**PLAIN, **OTHERS}[before]}
    for other in {**PLAIN, **OTHERS}:
        for union in (Union[(before, other)], Union[(other, before)]):  # noqa: UP007 - Any has no `|` in Python 3.10
            new = of(model(union))
            if not new.unreadable(old.written_form()):
                found = [new.deserialize(data).a for data in rows]
                assert [(type(each), each) for each in found] == [(type(each), each) for each in rows.values()], union


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (dict[str, int], Small | dict[str, int], "field 'a' was object, and may be read as object"),
        (str, str | UUID, "field 'a' was string, and may be read as uuid"),
        (str, date | str, "field 'a' was string, and may be read as date"),
        (list[str], list[date | str], "field 'a[]' was string, and may be read as date"),
        (str | date, date | str, "field 'a' was string, and may be read as date"),
        (Small, Large | Small, "field 'a' was object, and may be read as object"),
        (set[int], set[int] | list[int], "field 'a' was a set, and may be read as array"),
    ],
)
def test_an_alternative_that_may_take_rows_from_before_is_named(before: Any, now: Any, expected: str) -> None:
    assert expected in of(model(now)).unreadable(of(model(before)).written_form())
    inside, was_inside = (of(model(optional_dict(each))) for each in (now, before))
    assert expected.replace("'a", "'a[...].a") in inside.unreadable(was_inside.written_form())


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (int, int | str), (int, float | int), (str, str | date), (str, Literal["a"] | str), (Small, Small | Large),
        (Small, Small | dict[str, int]), (dict[str, int], dict[str, int] | Small), (str | date, str | date | int),
        (Literal["never"], Literal["never"] | date), (date | str, date | str | None), (list[int], list[int] | set[int]),
    ],
)  # fmt: skip
def test_an_alternative_that_takes_no_rows_continues(before: Any, now: Any) -> None:
    assert of(model(now)).unreadable(of(model(before)).written_form()) == ""


def test_a_named_alternative_takes_only_its_own() -> None:
    class One(Small):
        kind: Literal["one"] = "one"

    class Two(Small):
        kind: Literal["two"] = "two"

    union = Annotated[Two | One, pydantic.Field(discriminator="kind")]
    assert of(model(union)).unreadable(of(model(One)).written_form()) == ""


def wrapped(wrap: str, kind: Any) -> Any:
    made: dict[str, Any] = {
        "optional": kind | None,
        "list": list[kind],
        "key": dict[kind, int],
        "mixed": dict[str, tuple[int, kind | int]],
    }
    return made.get(wrap, kind)


WRAPS = ["itself", "optional", "list", "key", "mixed"]


def within(wrap: str, value: Any) -> Any:
    made = {"list": [value], "mixed": {"x": (1, value)}}
    return {value: 1} if wrap == "key" else made.get(wrap, value)


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("before", [str, *ONE_TEXT], ids=str)
def test_text_that_becomes_another_type_is_read_or_refused(before: Any, wrap: str) -> None:
    old = of(row(wrapped(wrap, before)))
    rows = [old.serialize(old.value_type(within(wrap, each))) for each in {str: TEXTS, **ONE_TEXT}[before]]
    for other in (str, *ONE_TEXT):
        new = of(row(wrapped(wrap, other)))
        if not new.unreadable(old.written_form()):
            for data in rows:
                new.deserialize(data)


@pytest.mark.parametrize("wrap", ["itself", "key"])
def test_a_zone_may_become_optional_and_not_needed(wrap: str) -> None:
    aware, plain = (of(row(wrapped(wrap, each))) for each in (Annotated[datetime, Meta(tz=True)], datetime))
    assert plain.unreadable(aware.written_form()) == ""
    assert "field 'a" in aware.unreadable(plain.written_form())
    with pytest.raises(SerdeError):
        aware.deserialize(plain.serialize(plain.value_type(within(wrap, datetime(2024, 2, 29)))))


@pytest.mark.parametrize(("old", "new"), [*permutations((str, datetime, time), 2), (datetime, datetime), (time, time)])
def test_forms_that_older_versions_saved_do_not_tell_times_from_text(old: Any, new: Any) -> None:
    form = 'of({"$patterns":true,"properties":{"a":{"type":"string"}},"required":["a"],"type":"object"})'
    assert of(row(new)).unreadable(form) == of(row(new)).unfindable(form) == ""
    told = of(row(new)).unreadable(of(row(old)).written_form())
    assert bool(told) == (old is not new and new is not str)


def test_the_order_of_a_set_of_times_is_not_that_of_text() -> None:
    old, new = of(row(set[datetime])), of(row(set[str]))
    assert new.unreadable(old.written_form()) == ""
    assert "is a set, whose elements with date-time had another order" in new.unfindable(old.written_form())
