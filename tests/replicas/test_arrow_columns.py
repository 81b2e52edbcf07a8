"""Values of classes as columns: each comes back from a column as it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import pyarrow
import pydantic
import pytest
from msgspec import UNSET, Struct, UnsetType

from penstock import Application, Topology, key_value_store
from penstock.plugins.serdes.of import typed_serde
from penstock.plugins.state.copies.arrow_columns import ArrowColumns, is_struct, without_absent
from penstock.plugins.testing.contracts.serde_tests import same_value


class Open(pydantic.BaseModel, extra="allow"):
    a: int


class OpenNumbers(pydantic.BaseModel, extra="allow"):
    a: int
    __pydantic_extra__: dict[str, int]


@dataclass
class Holder:
    held: list[Open]


class Omitting(Struct, omit_defaults=True):
    a: int | None = 5
    b: list[int] = []
    c: str | None = None


class Unset(Struct):
    a: int | UnsetType | None = UNSET


class Note(TypedDict):
    a: int
    b: NotRequired[int | None]


class Marked(TypedDict):
    a: int
    b: NotRequired[int]


@dataclass
class Usual:
    a: int | None = 5
    b: str | None = None
    c: list[int] = field(default_factory=lambda: [1])


class Computed(pydantic.BaseModel):
    a: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.a


@pytest.mark.parametrize(
    ("kind", "values", "is_of_columns"),
    [
        (Open, [Open(a=1, z=5), Open(a=1)], False),  # type: ignore[call-arg]
        (OpenNumbers, [OpenNumbers(a=1, z=5)], False),  # type: ignore[call-arg]
        (Holder, [Holder([Open(a=1, z=5)])], False),  # type: ignore[call-arg]
        (Omitting, [Omitting(), Omitting(None, [1], "c"), Omitting(5, [])], True),
        (list[Omitting], [[Omitting(), Omitting(None)]], True),
        (Unset, [Unset(), Unset(None), Unset(1)], False),
        (Note, [{"a": 1}, {"a": 1, "b": None}, {"a": 1, "b": 2}], False),
        (Marked, [{"a": 1}, {"a": 1, "b": 2}], True),
        (Computed, [Computed(a=1)], True),
        (Usual, [Usual(), Usual(None, "b", [2]), Usual(5, None, [])], True),
    ],
    ids=str,
)
def test_values_come_back_from_their_columns(kind: Any, values: list[Any], is_of_columns: bool) -> None:
    serde = typed_serde(kind)
    store = key_value_store("rows", key_serde="str", value_serde=serde)
    columns = ArrowColumns(Application("rows", Topology().add_source("in", "in")), store)
    batch = columns.batch({"key": ["k"] * len(values), "value": values}, "0_0", "v1")
    assert is_struct(serde) is is_of_columns
    if not is_of_columns:
        assert batch.schema.field("value").type == pyarrow.string()
    for row, value in zip(batch.column("value").to_pylist(), values, strict=True):
        if is_of_columns:
            read = serde.of_plain(without_absent(row, serde.json_schema()))
        else:
            read = serde.from_json(pydantic.TypeAdapter(Any).validate_json(row))
        assert same_value(read, value), f"{value!r} came back as {read!r}"
