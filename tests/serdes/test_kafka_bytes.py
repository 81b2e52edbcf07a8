"""Serdes that Kafka has, too, write the bytes that Kafka's own `Serdes` write.

The table was recorded with the `Serdes` of kafka-clients 4.4.0: `serializer().serialize("t", value)` in hexadecimal.
All values came back from `deserializer()` as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nan
from typing import Any
from uuid import UUID

import pytest

from penstock.errors import SerdeError
from penstock.plugins.testing.contracts.serde_tests import same_value
from penstock.program.serdes import resolve_serde
from penstock.serde import Serde

_UUID = UUID("123e4567-e89b-12d3-a456-426614174000")
_UUID_HEX = "31323365343536372d653839622d313264332d613435362d343236363134313734303030"
WRITTEN: Mapping[str, list[tuple[Any, str]]] = {
    "int32": [
        (0, "00000000"), (258, "00000102"), (-1, "ffffffff"), (2**31 - 1, "7fffffff"), (-(2**31), "80000000"),
    ],
    "int16": [(0, "0000"), (258, "0102"), (-1, "ffff"), (2**15 - 1, "7fff"), (-(2**15), "8000")],
    "float32": [
        (0.0, "00000000"), (0.5, "3f000000"), (-0.0, "80000000"), (1.10000002384185791015625, "3f8ccccd"),
        (3.4028234663852886e38, "7f7fffff"), (2.0**-149, "00000001"), (nan, "7fc00000"), (inf, "7f800000"),
        (-inf, "ff800000"),
    ],
    "uuid": [(_UUID, _UUID_HEX)],
    "list:int32": [
        ([1, None, -1], "0000000001000000010000000300000001ffffffff"),
        ([1, 2], "0000000000000000020000000100000002"),
        ([], "000000000000000000"),
        ([None, None], "0000000002000000000000000100000002"),
    ],
    "list:int16": [([1, None, -1], "000000000100000001000000030001ffff")],
    "list:int": [([1, None, -1], "000000000100000001000000030000000000000001ffffffffffffffff")],
    "list:float32": [([0.5, None], "000000000100000001000000023f000000")],
    "list:float": [([0.5, None], "000000000100000001000000023fe0000000000000")],
    "list:uuid": [([_UUID, None], "00000000010000000100000002" + _UUID_HEX)],
    "list:bool": [([True, None, False], "01000000030000000101ffffffff0000000100")],
    "list:str": [
        (["a", "", None, "äb"], "0100000004000000016100000000ffffffff00000003c3a462"), ([], "0100000000"),
    ],
    "list:bytes": [([b"\1\2", None], "0100000002000000020102ffffffff")],
    "list:void": [([None, None], "0100000002ffffffffffffffff")],
    "list:list:int32": [
        ([[1], None, []], "01000000030000000d00000000000000000100000001ffffffff00000009000000000000000000"),
    ],
    "list:list:str": [([["a"]], "01000000010000000a01000000010000000161")],
}  # fmt: skip
READ = [
    ("uuid", str(_UUID).upper().encode().hex(), _UUID),
    ("list:int32", "01000000020000000400000005ffffffff", [5, None]),
]
"""Bytes that Kafka's serdes read, and do not write: a UUID in upper case, and numbers with lengths."""
REFUSED = [
    ("uuid", "00"),
    ("void", ""),
    ("void", "00"),
    ("list:int32", ""),
    ("list:int32", "00"),
    ("list:int32", "02"),
    ("list:int32", "0000000000ffffffff"),
    ("list:str", "00000000000000000161"),
    ("list:str", "01000000020000000161fffffffe"),
]
"""Bytes that Kafka's serdes refuse."""
CASES = [(name, value, written) for name, cases in WRITTEN.items() for value, written in cases]


@pytest.mark.parametrize(("name", "value", "written"), CASES)
def test_the_bytes_are_those_of_kafka(name: str, value: Any, written: str) -> None:
    serde = _serde(name)
    data = bytes.fromhex(written)
    assert serde.serialize(value) == serde.serializer()(value) == data
    assert same_value(serde.deserialize(data), value)
    assert same_value(serde.deserialize_column([data, None]), [value, None])


@pytest.mark.parametrize(("name", "data", "value"), READ)
def test_what_kafka_reads_is_read(name: str, data: str, value: Any) -> None:
    assert same_value(_serde(name).deserialize(bytes.fromhex(data)), value)


@pytest.mark.parametrize(("name", "data"), REFUSED)
def test_what_kafka_refuses_is_refused(name: str, data: str) -> None:
    with pytest.raises(SerdeError):
        _serde(name).deserialize(bytes.fromhex(data))
    with pytest.raises(SerdeError):
        _serde(name).deserialize_column([None, bytes.fromhex(data)])


def test_void_is_none_alone() -> None:
    void = _serde("void")
    assert void.deserialize_column([None, None]) == [None, None]
    for value in (None, 0, "", b""):
        with pytest.raises(SerdeError, match="None has no bytes"):
            void.serialize(value)


def test_the_text_of_a_uuid_is_one_as_well() -> None:
    assert _serde("uuid").serialize(str(_UUID).upper()).hex() == _UUID_HEX


def test_a_float_is_rounded_to_32_bits() -> None:
    assert _serde("float32").serialize(1.1).hex() == "3f8ccccd"
    assert _serde("float32").serialize(3) == _serde("float32").serialize(3.0)


def _serde(name: str) -> Serde[Any]:
    return resolve_serde(name, None, "test")
