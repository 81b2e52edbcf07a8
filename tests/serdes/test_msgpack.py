"""What the msgpack serde writes, in which order it sorts, and what it says about what it cannot hold."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, OrderedDict, defaultdict
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SerdeError
from penstock.plugins.serdes.msgpack import MsgpackSerde
from penstock.plugins.testing.contracts.serde_tests import same_value

serde = MsgpackSerde()


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Customer:
    name: str


class Size(enum.IntEnum):
    SMALL = 1


class Number(int):
    pass


class HomeMade(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, when: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, when: datetime | None) -> str:
        return "home"


# ---------------------------------------------------------------- the bytes, which do not change


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (("a", 1), "d601 92a16101"),
        ((), "d401 90"),
        ({3, 1, 2}, "d602 93010203"),
        (frozenset(), "d403 90"),
        (2**64, "c70904 010000000000000000"),
        (-(2**63) - 1, "c70904 ff7fffffffffffffff"),
        (2**64 - 1, "cf ffffffffffffffff"),
        (datetime(2024, 2, 29, 23, 59, 58, 7), "c70c05 07e8021d173b3a 00000007 00"),
        (datetime(2024, 2, 29, fold=1), "c70c05 07e8021d000000 00000000 01"),
        (datetime(2024, 2, 29, tzinfo=UTC), "c71405 07e8021d000000 00000000 02 0000000000000000"),
        (
            datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=-1), "X")),
            "c71505 07e8021d000000 00000000 0a ffffffff296c5c00 58",
        ),
        (datetime(2024, 2, 29, tzinfo=ZoneInfo("UTC")), "c70f05 07e8021d000000 00000000 04 555443"),
        (date(2024, 2, 29), "d606 000b4681"),
        (timedelta(days=-1, microseconds=5), "c70c07 3b9ac9ff 00000000 00000005"),
        (Decimal("-1.50"), "c70508 2d312e3530"),
        (UUID(int=1), "d809 00000000000000000000000000000001"),
        ("\ud800", "a3eda080"),
    ],
)
def test_the_layout_of_each_extension_type(value: Any, written: str) -> None:
    assert serde.serialize(value).hex() == written.replace(" ", "")
    assert same_value(serde.deserialize(bytes.fromhex(written)), value)


def test_what_messagepack_has_is_plain_messagepack() -> None:
    value = {"a": [1, -1, 2**40, 1.5, True, None, b"bytes", "text"], "b": {}}
    assert serde.serialize(value) == msgpack.packb(value)
    assert serde.deserialize(msgpack.packb(value)) == value


def test_extension_types_above_63_pass_through() -> None:
    value = [msgpack.ExtType(64, b"yours")]
    assert serde.deserialize(serde.serialize(value)) == value


# ---------------------------------------------------------------- as keys of a store


@given(st.lists(st.integers() | st.text(max_size=3) | st.tuples(st.integers())))
def test_equal_sets_have_equal_bytes(elements: list[Any]) -> None:
    for kind in (set, frozenset):
        backwards = kind(elements[::-1])
        assert kind(elements) == backwards
        assert serde.serialize(kind(elements)) == serde.serialize(backwards)


@given(st.lists(st.datetimes()), st.lists(st.dates()), st.lists(st.timedeltas()), st.lists(st.text(max_size=2)))
def test_keys_in_order_of_time_and_short_text_in_order_of_length(
    moments: list[datetime], days: list[date], spans: list[timedelta], words: list[str]
) -> None:
    for values in (moments, days, spans):
        assert sorted(values, key=serde.serialize) == sorted(values)
    assert sorted(words, key=serde.serialize) == sorted(words, key=lambda word: (len(word.encode()), word))


def test_equal_values_of_different_types_are_different_keys() -> None:
    assert len({serde.serialize(value) for value in (1, 1.0, True, Decimal(1), (1,), [1])}) == 6


def test_a_dict_keeps_its_order() -> None:
    assert list(serde.deserialize(serde.serialize({"b": 1, "a": 2}))) == ["b", "a"]


# ---------------------------------------------------------------- what it cannot hold


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            Point(1, 2),
            r"cannot hold a \S+\.Point so that it comes back the same; convert it \(tuple\(value\), or value\._asdict",
        ),
        (Customer("alice"), r"\.Customer .*; convert it \(dataclasses\.asdict\(value\)\)"),
        (Size.SMALL, r"\.Size .*; keep its value \(value\.value\)"),
        (Number(1), r"\.Number .*; convert it to int, of which it is a subclass"),
        (OrderedDict(), r"collections\.OrderedDict .*; convert it to dict"),
        (defaultdict(int), r"collections\.defaultdict .*; convert it to dict"),
        (Counter(), r"collections\.Counter .*; convert it to dict"),
        (np.int64(1), r"numpy\.int64 .*; convert it \(value\.tolist\(\)\)"),
        (np.float64(1), r"numpy\.float64 .*; convert it \(value\.tolist\(\)\)"),
        (np.zeros(2), r"numpy\.ndarray .*; convert it \(value\.tolist\(\)\)"),
        (pd.Timestamp(0), r"Timestamp .*; convert it \(value\.to_pydatetime\(\)\)"),
        (pd.Timedelta(0), r"Timedelta .*; convert it \(value\.to_pytimedelta\(\)\)"),
        (object(), r"a object .*; convert it to plain data"),
        (1j, r"a complex .*; convert it to plain data"),
        (datetime(2024, 1, 1, tzinfo=HomeMade()), r"a datetime with the time zone \S+\.HomeMade .*astimezone"),
    ],
)
@pytest.mark.parametrize("where", [lambda value: value, lambda value: {"deep": [(1, value)]}])
def test_what_it_cannot_hold_is_named_with_what_to_do(value: Any, message: str, where: Any) -> None:
    with pytest.raises(SerdeError, match=f"serde 'msgpack': .*{message}"):
        serde.serialize(where(value))
    assert serde.serialize([1, (2,)]) == bytes.fromhex("9201d5019102"), "a failure leaves nothing behind"


def test_the_message_names_the_serdes_that_could_hold_it() -> None:
    with pytest.raises(
        SerdeError, match=r"or give the store or topic another serde: one of your own .*, or 'pickle' where"
    ):
        serde.serialize(object())


def _nested(depth: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda value: (value,), lambda value: frozenset([value])])
def test_tuples_and_sets_nest_32_deep(wrap: Any) -> None:
    value = _nested(32, wrap)
    written = serde.serialize(value)
    assert serde.deserialize(written) == value
    for _ in range(2):
        with pytest.raises(SerdeError, match="tuples and sets nest more than 32 deep; flatten the value"):
            serde.serialize(wrap(value))
    deeper = msgpack.packb(msgpack.ExtType(1, b"\x91" + written))
    with pytest.raises(SerdeError, match="tuples and sets nest more than 32 deep"):
        serde.deserialize(deeper)


@pytest.mark.parametrize("empty", [(), set(), frozenset()])
def test_what_is_empty_nests_no_deeper(empty: Any) -> None:
    value = empty
    for _ in range(31):
        value = (value,)
    assert serde.deserialize(serde.serialize(value)) == value
    with pytest.raises(SerdeError, match="tuples and sets nest more than 32 deep; flatten the value"):
        serde.serialize((value,))


def test_lists_nest_500_deep() -> None:
    value = _nested(500, lambda value: [value])
    assert serde.deserialize(serde.serialize(value)) == value
    with pytest.raises(SerdeError, match="does it contain itself, or nest hundreds deep"):
        serde.serialize(_nested(2000, lambda value: [value]))
    with pytest.raises(SerdeError, match="cannot read 2001 bytes"):
        serde.deserialize(b"\x91" * 2000 + b"\x01")


def test_a_value_that_contains_itself_is_refused() -> None:
    plain: list[Any] = []
    plain.append(plain)
    through_tuple: list[Any] = []
    through_tuple.append((through_tuple,))
    for value in (plain, through_tuple, {"itself": plain}):
        with pytest.raises(SerdeError):
            serde.serialize(value)
    assert serde.deserialize(serde.serialize((1, [2]))) == (1, [2])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot read 0 bytes"),
        (b"\xc1", "cannot read 1 bytes"),
        (b"\x01\x02", "extra data.*name the serde they were written with"),
        (b"\x92\x01", "cannot read 2 bytes"),
        (b"\xa1\xff", "cannot read 2 bytes"),
        (b"\x81\x90\x01", "unhashable type: 'list'"),
        (b"\xd4\x3f\x00", "extension type 63 is not known to this version of penstock"),
        (b"\xd4\x01\x05", "extension type 1 holds no array"),
        (b"\xd4\x05\x00", "cannot read 3 bytes"),
        (b"\xc7\x0e\x05" + b"\x07\xe8\x01\x01\0\0\0\0\0\0\0\x04" + b"No", "No time zone found"),
        (b"\xd6\x06\xff\xff\xff\xff", "cannot read 6 bytes"),
        (b"\xd4\x08\x78", "cannot read 3 bytes"),
    ],
)
def test_foreign_bytes_are_named(data: bytes, message: str) -> None:
    with pytest.raises(SerdeError, match=message):
        serde.deserialize(data)


def test_bytes_like_values_come_back_as_bytes() -> None:
    assert serde.deserialize(serde.serialize([bytearray(b"a"), memoryview(b"b")])) == [b"a", b"b"]
