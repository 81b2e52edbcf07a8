"""What the other serdes say about what they cannot convert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import SerdeError
from penstock.plugins.serdes.json import JsonSerde
from penstock.plugins.serdes.list import ListSerde
from penstock.plugins.serdes.msgpack import MsgpackSerde
from penstock.plugins.serdes.pickle import PickleSerde
from penstock.plugins.serdes.uuid import UuidSerde
from penstock.plugins.serdes.void import VoidSerde
from penstock.serde import (
    BoolSerde,
    BytesSerde,
    Float32Serde,
    FloatSerde,
    Int16Serde,
    Int32Serde,
    IntSerde,
    Serde,
    StrSerde,
)


@dataclass
class Point:
    x: int


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("serde", "value", "message"),
    [
        (
            BytesSerde(),
            "text",
            r"serde 'bytes': expected bytes, found str 'text'; name a serde that fits, such as 'st",
        ),
        (StrSerde(), {"a": 1}, r"expected str, found dict \{'a': 1\}; name a serde that fits, such as 'json' \("),
        (
            StrSerde(),
            Point(1),
            r"found Point Point\(x=1\); name a serde that fits, such as of\(Point\) \(",
        ),
        (
            MsgpackSerde(),
            Point(1),
            r"cannot hold a .*Point .* the store or topic another serde: of\(Point\) of penst",
        ),
        (StrSerde(), b"x", r"serde 'str': expected str, found bytes b'x'; name a serde that fits"),
        (StrSerde(), "\ud800", r"expected text that UTF-8 can hold, found str '\\ud800'; name a serde that fits \("),
        (StrSerde(), Unprintable(), r"serde 'str': expected str, found Unprintable <Unprintable instance"),
        (IntSerde(), True, r"serde 'int': expected int, found bool True"),
        (
            IntSerde(),
            2**63,
            r"serde 'int': 9223372036854775808 does not fit 8 bytes; the serde 'msgpack' holds integers of any",
        ),
        (FloatSerde(), 10**400, r"serde 'float': 1000.* does not fit 8 bytes"),
        (Int32Serde(), 2**31, r"serde 'int32': 2147483648 does not fit 4 bytes; the serde 'int' has 8"),
        (Int16Serde(), 2**15, r"serde 'int16': 32768 does not fit 2 bytes; the serde 'int32' has 4, and 'int' has 8"),
        (Float32Serde(), 1e39, r"serde 'float32': 1e\+39 does not fit 4 bytes; the serde 'float' has 8"),
        (UuidSerde(), "1-2-3-4-5", r"serde 'uuid': expected uuid.UUID, found str '1-2-3-4-5'; name a serde that fits"),
        (VoidSerde(), 0, r"serde 'void': expected a missing key or value, found int 0; None has no bytes"),
        (VoidSerde(), None, r"serde 'void': expected a missing key or value, found NoneType None; None has no bytes"),
        (ListSerde("int32"), (1,), r"serde 'list': expected list, found tuple \(1,\); name a serde that fits"),
        (ListSerde("int32"), [1, "2"], r"serde 'list': entry 1: serde 'int32': expected int, found str '2'"),
        (ListSerde("void"), [None, 1], r"serde 'list': entry 1: serde 'void': expected a missing key or value"),
        (BoolSerde(), 1, r"serde 'bool': expected bool, found int 1"),
        (JsonSerde(), {1: 2}, r"serde 'json': cannot write dict \{1: 2\}: Dict key must be str; convert it"),
        (JsonSerde(), 2**64, r"serde 'json': cannot write int .*: Integer exceeds 64-bit range"),
        (
            JsonSerde(),
            {1, 2},
            r"serde 'json': cannot write set \{1, 2\}: .*or name another serde \('msgpack' keeps Python's types\)",
        ),
        (PickleSerde(), lambda: 1, r"serde 'pickle': cannot write builtins\.function .*; keep only plain data in it"),
    ],
)
def test_a_value_of_the_wrong_kind(serde: Serde[Any], value: Any, message: str) -> None:
    with pytest.raises(SerdeError, match=message):
        serde.serialize(value)


@pytest.mark.parametrize(
    ("serde", "data", "message"),
    [
        (
            StrSerde(),
            b"\xff",
            r"serde 'str': b'\\xff' is not UTF-8 \(invalid start byte\); name the serde it was written with",
        ),
        (IntSerde(), b"1", r"serde 'int': expected 8 bytes that it wrote, found 1: b'1'; name the serde"),
        (Int16Serde(), b"1", r"serde 'int16': expected 2 bytes that it wrote, found 1: b'1'; name the serde"),
        (UuidSerde(), b"1-2-3-4-5", r"serde 'uuid': expected the 36 characters of a UUID, found 9 bytes: b'1-2-3-4-5'"),
        (VoidSerde(), b"", r"serde 'void': expected null, found 0 bytes: b''; name the serde they were written with"),
        (ListSerde("int32"), b"", r"serde 'list': expected a first byte 0 or 1, found 0 bytes: b''; name the serde"),
        (ListSerde("int32"), b"\2", r"serde 'list': expected a first byte 0 or 1, found 1 bytes"),
        (ListSerde("str"), bytes(9), r"serde 'list': expected a first byte 1, found 9 bytes"),
        (ListSerde("int32"), bytes(9) + b"a", r"serde 'list': expected 0 entries of 4 bytes, found 10 bytes"),
        (
            ListSerde("int32"),
            bytes.fromhex("0000000001000000090000000100000005"),
            r"serde 'list': expected each index of a None entry once, and below 1, found 17 bytes",
        ),
        (ListSerde("int32"), b"\0" + b"\xff" * 4, r"serde 'list': expected a number of None entries that fits, not -1"),
        (ListSerde("str"), b"\1" + b"\xff" * 4, r"serde 'list': expected a number of entries, not -1"),
        (ListSerde("str"), b"\1\0\0\0\1\0\0\0\2a", r"serde 'list': expected a length of entry 0 that fits, not 2"),
        (ListSerde("str"), b"\1\0\0\0\0a", r"serde 'list': expected 5 bytes of 0 entries, found 6 bytes"),
        (ListSerde("str"), b"\1\0\0\0\1\0\0\0\1\xff", r"serde 'list': entry 0: serde 'str': b'\\xff' is not UTF-8"),
        (BoolSerde(), b"\x02", r"serde 'bool': expected 1 byte that it wrote, found 1: b'\\x02'"),
        (
            JsonSerde(),
            b'{"a": 1, "b": }',
            r"serde 'json': not JSON: .*line 1 column 15.* near b'\{\"a\": 1, \"b\": \}' of 15 bytes",
        ),
        (JsonSerde(), b"", r"serde 'json': not JSON: .*of 0 bytes"),
        (JsonSerde(), b"NaN", r"serde 'json': not JSON"),
        (
            PickleSerde(),
            b"no pickle",
            r"serde 'pickle': cannot read 9 bytes b'no pickle': .*name the serde they were written with",
        ),
        (PickleSerde(), b"cnowhere\nThing\n.", r"ModuleNotFoundError.*keep the classes where they were"),
    ],
)
def test_bytes_of_the_wrong_kind(serde: Serde[Any], data: bytes, message: str) -> None:
    with pytest.raises(SerdeError, match=message):
        serde.deserialize(data)


def test_what_json_converts_is_converted() -> None:
    assert JsonSerde().serialize((1, None)) == b"[1,null]"
