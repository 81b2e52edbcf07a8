"""What the other serdes say about what they cannot convert."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SerdeError
from penstock.plugins.serdes.json import JsonSerde
from penstock.plugins.serdes.pickle import PickleSerde
from penstock.serde import BoolSerde, BytesSerde, FloatSerde, IntSerde, Serde, StrSerde


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("serde", "value", "message"),
    [
        (BytesSerde(), "text", r"serde 'bytes': expected bytes, found str 'text'; name a serde that fits"),
        (StrSerde(), b"x", r"serde 'str': expected str, found bytes b'x'; name a serde that fits"),
        (StrSerde(), "\ud800", r"serde 'str': expected text that UTF-8 can hold, found str '\\ud800'"),
        (StrSerde(), Unprintable(), r"serde 'str': expected str, found Unprintable <Unprintable instance"),
        (IntSerde(), True, r"serde 'int': expected int, found bool True"),
        (
            IntSerde(),
            2**63,
            r"serde 'int': 9223372036854775808 does not fit 8 bytes; the serde 'msgpack' holds integers of any",
        ),
        (FloatSerde(), 10**400, r"serde 'float': 1000.* does not fit 8 bytes"),
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
    assert JsonSerde().serialize((1, float("nan"))) == b"[1,null]"
