"""Every serde of penstock keeps the published contract."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, timedelta, timezone
from enum import IntEnum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from penstock.plugins.serdes.json import JsonSerde
from penstock.plugins.serdes.list import ListSerde, list_serde
from penstock.plugins.serdes.msgpack import MsgpackSerde
from penstock.plugins.serdes.pickle import PickleSerde
from penstock.plugins.serdes.uuid import UuidSerde
from penstock.plugins.serdes.void import VoidSerde
from penstock.plugins.testing.contracts.serde import SerdeContract
from penstock.plugins.testing.contracts.serde_tests import ANY_TEXT
from penstock.serde import (
    BoolSerde,
    BytesSerde,
    Float32Serde,
    FloatSerde,
    Int16Serde,
    Int32Serde,
    IntSerde,
    StrSerde,
)


class Colour(IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


class Text(str):
    pass


class TestBytes(SerdeContract):
    serde = BytesSerde
    values = st.binary()
    refused = ("text", 1, None, [1, 2])


class TestStr(SerdeContract):
    serde = StrSerde
    values = st.text()
    refused = (b"bytes", 1, None, "\ud800")


class TestInt(SerdeContract):
    serde = IntSerde
    values = st.integers(-(2**63), 2**63 - 1)
    refused = ("1", 1.0, True, None, 2**63, -(2**63) - 1)


class TestInt32(SerdeContract):
    serde = Int32Serde
    values = st.integers(-(2**31), 2**31 - 1)
    refused = ("1", 1.0, True, None, 2**31, -(2**31) - 1)


class TestInt16(SerdeContract):
    serde = Int16Serde
    values = st.integers(-(2**15), 2**15 - 1)
    refused = ("1", 1.0, True, None, 2**15, -(2**15) - 1)


class TestFloat(SerdeContract):
    serde = FloatSerde
    values = st.floats()
    refused = ("1", True, None, 10**400)


class TestFloat32(SerdeContract):
    serde = Float32Serde
    values = st.floats(width=32)
    refused = ("1", True, None, 1e39, 10**400)


class TestUuid(SerdeContract):
    serde = UuidSerde
    values = st.uuids(allow_nil=True)
    refused = ("text", b"0" * 36, 1, None, "{123e4567-e89b-12d3-a456-426614174000}", "123e4567e89b12d3a456426614174000")
    foreign = st.binary(max_size=64) | st.text("0123456789abcdefABCDEF-", min_size=36, max_size=36).map(str.encode)


_one_width = st.binary(max_size=16).map(lambda rest: b"\0\0\0\0\1\0\0\0\0" + rest)
_own_lengths = st.binary(max_size=16).map(lambda rest: b"\1\0\0\0\2" + rest)


class TestListOfOneWidth(SerdeContract):
    serde = staticmethod(lambda: ListSerde("int32"))
    values = st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=6)
    refused = ((1,), "1", None, {1}, [1, "2"], [2**31])
    foreign = st.binary(max_size=64) | _one_width | _own_lengths


class TestListOfOwnLengths(SerdeContract):
    serde = staticmethod(lambda: ListSerde("str"))
    values = st.lists(st.none() | st.text(max_size=5), max_size=6)
    refused = (("a",), "a", None, [b"a"], ["\ud800"])
    foreign = st.binary(max_size=64) | _one_width | _own_lengths


class TestListOfLists(SerdeContract):
    serde = staticmethod(lambda: ListSerde("list:uuid"))
    values = st.lists(st.none() | st.lists(st.none() | st.uuids(), max_size=3), max_size=3)
    refused = ([1], [["text"]], None)


class TestBool(SerdeContract):
    serde = BoolSerde
    values = st.booleans()
    refused = (1, 0, "true", None)


_json_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


class TestJson(SerdeContract):
    serde = JsonSerde
    keeps_order = True
    values = st.recursive(
        _json_leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=10,
    )
    refused = (object(), {1: 2}, b"bytes", {1, 2}, 2**64, "\ud800", [b"bytes"])


class TestPickle(SerdeContract):
    serde = PickleSerde
    for_keys = False
    ignores_the_rest = True
    values = st.recursive(
        st.none() | st.integers() | st.text() | st.just(Point(1, 2)) | st.just(Colour.RED),
        lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner),
        max_leaves=5,
    )
    refused = (lambda: None, memoryview(b""))
    # Not random bytes: reading a pickle does whatever it says.
    foreign = st.sampled_from([b"", b"\x00", b"not a pickle", b"\x80\x05", b"cnowhere\nnothing\n."])


_zones = (
    st.none()
    | st.just(UTC)
    | st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))
    | st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)), ANY_TEXT)
    | st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"]).map(ZoneInfo)
)
_hashable_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from(
        [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**200, -(2**200), 2**71 - 1, -(2**71)]
    )
    | st.floats()
    | ANY_TEXT
    | st.binary(max_size=20)
    | st.datetimes(timezones=_zones, allow_imaginary=True)
    | st.dates()
    | st.timedeltas()
    | st.decimals().filter(lambda number: not number.is_snan())  # has no hash
    | st.uuids()
)


def _hashable(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3)


_keys = st.recursive(_hashable_leaves, _hashable, max_leaves=4)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(_keys, max_size=3)
        | st.dictionaries(_keys, inner, max_size=3)
    )


class TestMsgpack(SerdeContract):
    serde = MsgpackSerde
    keeps_order = True
    values = st.recursive(_keys | st.decimals(), _containers, max_leaves=8)
    refused = (
        object(),
        Colour.RED,
        Text("text"),
        Point(1, 2),
        OrderedDict(a=1),
        [1, Colour.RED],
        {"deep": ({"deeper": [Point(1, 2)]},)},
        {Text("key"): 1},
        range(3),
        1j,
        ZoneInfo("UTC"),
        lambda: None,
    )


def _registered(name: str) -> Callable[[], Any]:
    from penstock.hooks import registry

    return registry().load("serde", name)  # type: ignore[no-any-return]


def test_each_is_found_by_its_name() -> None:
    for name, serde in {
        "int32": Int32Serde, "int16": Int16Serde, "float32": Float32Serde, "uuid": UuidSerde, "void": VoidSerde,
        "list": list_serde, "bytes": BytesSerde,
        "str": StrSerde, "int": IntSerde, "float": FloatSerde, "bool": BoolSerde,
        "json": JsonSerde, "msgpack": MsgpackSerde, "pickle": PickleSerde,
    }.items():  # fmt: skip
        assert _registered(name) is serde
