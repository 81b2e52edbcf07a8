"""Types of `of` that change while rows of theirs are kept: no field gets another field's value, and none is lost."""

from __future__ import annotations

from datetime import date
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import pydantic
import pytest
from msgspec import Struct, defstruct

from penstock.plugins.serdes.of import of
from penstock.plugins.serdes.registry.json_schema import JsonSchemaSerde

T = TypeVar("T")


class Span(NamedTuple, Generic[T]):
    start: T
    end: T


class Turned(NamedTuple, Generic[T]):
    end: T
    start: T


class Prices:
    class Row(NamedTuple):
        low: int
        high: int


class Turns:
    class Row(NamedTuple):
        """Has the name of another class."""

        high: int
        low: int


class Places:
    class Row(NamedTuple):
        """Has that name, too."""

        x: int
        y: int


def array(*fields: str, tag: str | None = None) -> Any:
    """A Struct that is written as an array."""
    return defstruct("Row", [(each, int) for each in fields], array_like=True, tag=tag)


IN_ORDER: list[tuple[Any, Any]] = [
    (array("x", "y"), array("y", "x")),
    (list[array("x", "y")], list[array("y", "x")]),  # type: ignore[misc]
    (array("x", "y", tag="A"), array("y", "x", tag="A")),
    (Span[int], Turned[int]),
    (dict[str, Span[int] | None], dict[str, Turned[int] | None]),
    (tuple[Places.Row, Prices.Row], tuple[Places.Row, Turns.Row]),
    (tuple[Span[str], Span[int]], tuple[Span[str], Turned[int]]),
]


@pytest.mark.parametrize(("before", "now"), IN_ORDER)
def test_fields_that_have_no_names_in_the_rows_stay_in_order(before: Any, now: Any) -> None:
    assert "rows have the fields in order" in of(now).unreadable(of(before).written_form())
    assert of(before).unreadable(of(before).written_form()) == ""


def test_an_array_keeps_its_last_fields() -> None:
    found = of(array("x")).unreadable(of(array("x", "y")).written_form())
    assert "field '[1]' is gone" in found
    assert of(array("x", "y")).unreadable(of(array("x", "y")).written_form()) == ""


def omitting(**fields: Any) -> Any:
    """A Struct whose rows leave out what is a field's default."""
    return defstruct("Row", [(name, type(each), each) for name, each in fields.items()], omit_defaults=True)


def test_a_default_that_rows_leave_out_stays() -> None:
    kind = omitting(a=1, b="x")
    before = of(kind)
    assert before.serialize(kind()) == b"{}"
    kept = defstruct("Row", [("a", int, 1), ("b", str, "x"), ("c", int, 0)])
    assert of(kept).unreadable(before.written_form()) == ""
    assert before.unreadable(of(kept).written_form()) != ""  # c is gone
    for now in (omitting(a=1, b="y"), defstruct("Row", [("a", int, 1), ("b", str, "y")])):
        found = of(now).unreadable(before.written_form())
        assert "field 'b' had the default 'x', which rows leave out: keep it" in found


class Open(pydantic.BaseModel, extra="allow"):
    a: int


class Closed(pydantic.BaseModel):
    a: int


class Strict(pydantic.BaseModel, extra="forbid"):
    a: int


class OfNumbers(pydantic.BaseModel, extra="allow"):
    a: int
    __pydantic_extra__: dict[str, int]


class OfText(pydantic.BaseModel, extra="allow"):
    a: int
    __pydantic_extra__: dict[str, str]


@pytest.mark.parametrize("now", [Closed, Strict])
@pytest.mark.parametrize("before", [Open, OfNumbers])
@pytest.mark.parametrize("wrap", [lambda kind: kind, list.__class_getitem__])
def test_fields_that_are_not_declared_are_not_lost(before: Any, now: Any, wrap: Any) -> None:
    assert "may have fields that are not declared, and they would be lost" in of(wrap(now)).unreadable(
        of(wrap(before)).written_form()
    )
    assert of(wrap(before)).unreadable(of(wrap(now)).written_form()) == ""


def test_fields_that_are_not_declared_keep_their_type() -> None:
    assert of(Open).unreadable(of(OfNumbers).written_form()) == ""
    assert "field '[...]' was integer and is string" in of(OfText).unreadable(of(OfNumbers).written_form())


def test_an_open_schema_of_a_registry_takes_other_fields() -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}%s}'
    before = JsonSchemaSerde(schema % ', "additionalProperties": true', registry="mock://changes").written_form()
    assert JsonSchemaSerde(schema % "", registry="mock://changes").unreadable(before) == ""
    closed = JsonSchemaSerde(schema % ', "additionalProperties": false', registry="mock://changes")
    assert "they would be lost" in closed.unreadable(before)


def model_of(key: Any) -> Any:
    return pydantic.create_model("Outer", a=(dict[key, int], ...))


class Fields(TypedDict):
    x: int


class Point(pydantic.BaseModel):
    x: int


class Pair(pydantic.BaseModel):
    a: Point


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (Fields, dict[int, int], "the value had fields, and 'x' is no key of the dict, whose keys are integer"),
        (Fields, dict[date, int], "whose keys are date"),
        (Fields, dict[Literal["y"], int], "whose keys are one of 'y'"),
        (list[Fields], list[dict[float, int]], "field '[]' had fields, and 'x' is no key of the dict"),
        (Pair, model_of(int), "field 'a' had fields, and 'x' is no key of the dict, whose keys are integer"),
        (Pair, model_of(date), "whose keys are date"),
        (Fields, dict[str, int], ""),
        (Fields, dict[Literal["x", "y"], int], ""),
        (Pair, model_of(str), ""),
    ],
)
def test_fields_become_a_dict_only_if_its_keys_are_their_names(before: Any, now: Any, expected: str) -> None:
    found = of(now).unreadable(of(before).written_form())
    assert (expected in found) if expected else (found == ""), found


class Tree(Struct):
    """Has trees inside, and counts by a type of keys."""

    left: Tree | None
    right: Tree | None
    counts: dict[int, int]


class Bush(Struct):
    left: Bush | None
    right: Bush | None
    counts: dict[date, int]


def doubled(key: Any, levels: int) -> Any:
    """A type of so many levels, each with two of the next; the innermost has a dict."""
    kind = defstruct("Level", [("counts", dict[key, int])])
    for number in range(levels):
        kind = defstruct(f"Level{number}", [("one", kind), ("other", kind)])
    return kind


def test_a_type_that_is_used_twice_is_in_the_form_once() -> None:
    shallow, deep, other = (of(doubled(*each)) for each in ((int, 20), (int, 40), (date, 40)))
    assert len(deep.written_form()) < 3 * len(shallow.written_form())
    assert deep.unreadable(other.written_form()).count("(keys)' was date and is integer") == 1
    renamed = deep.written_form().replace("Level", "Story")
    assert deep.unreadable(renamed) == deep.unfindable(renamed) == ""
    assert of(Tree).unreadable(of(Bush).written_form()).endswith("'counts (keys)' was date and is integer")


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (
            defstruct("Row", [("counts", dict[int, int])]),
            '{"$defs":{"Row":{"properties":{"counts":{"additionalProperties":{"type":"integer"},"type":"object"}},'
            '"required":["counts"],"type":"object"}},"$keys":{"counts (keys)":{"type":"integer"}},"$ref":'
            '"#/$defs/Row"}',
        ),
        (
            defstruct("Row", [("to", str), ("counts", dict[int, int])]),
            '{"$defs":{"Row":{"properties":{"counts":{"additionalProperties":{"type":"integer"},"type":"object"},"to":'
            '{"type":"string"}},"required":["counts","to"],"type":"object"}},"$keys":{"counts (keys)":{"type":'
            '"integer"}},"$patterns":true,"$ref":"#/$defs/Row"}',
        ),
        (
            dict[str, list[dict[date, int]]],
            '{"$keys":{"(keys)":{"type":"string"},"[...][] (keys)":{"format":"date","type":"string"}},"$patterns":true,'
            '"additionalProperties":{"items":{"additionalProperties":{"type":"integer"},"type":"object"},"type":'
            '"array"},"type":"object"}',
        ),
    ],
)
def test_forms_with_the_keys_of_dicts_by_their_paths_are_read(kind: Any, form: str) -> None:
    serde = of(kind)
    assert serde.unreadable(f"of({form})") == serde.unfindable(f"of({form})") == ""
