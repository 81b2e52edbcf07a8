"""The `json` serde: documents that any language reads."""

from __future__ import annotations

import reprlib
from collections.abc import KeysView
from dataclasses import fields
from functools import lru_cache
from typing import Any

import orjson

from penstock import Serde, SerdeError

from .not_finite import check_finite


def dump_finite(value: Any) -> bytes:
    """Return `value` as JSON, by orjson. Raises ValueError, too, with the path of a nan or infinity."""
    try:
        data = orjson.dumps(value, _of_dataclass, orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError as error:
        if isinstance(error.__cause__, _AbsentField):
            raise error.__cause__ from None
        raise
    # Equal values have no nan; to walk through others takes ten times as long.
    if b"null" in data and orjson.loads(data) != value:
        check_finite(value, data)
    return data


class _AbsentField(TypeError):
    """A field of a dataclass has no value."""


def _of_dataclass(value: Any) -> dict[str, Any]:
    """Return what orjson writes of a dataclass: all but names with an underscore before them.

    orjson itself leaves out a field that has no value, or crashes. Raises TypeError for other values.
    """
    kind: Any = type(value)
    names = _names_of(kind)
    own: dict[str, Any] = getattr(value, "__dict__", {})
    shown = {name: each for name, each in own.items() if name[0] != "_"}
    if names <= shown.keys():
        return shown
    for name in names:
        if not hasattr(value, name):
            raise _AbsentField(f"field {name!r} of {kind.__name__} has no value: set it")
    return {**{name: getattr(value, name) for name in names}, **shown}


@lru_cache(maxsize=1024)
def _names_of(kind: Any) -> KeysView[str]:
    """Return the fields that orjson writes, in order. Raises TypeError for a class that it does not write."""
    if "__dataclass_fields__" not in vars(kind):
        raise TypeError(f"{kind.__name__} is no dataclass")
    return {each.name: None for each in fields(kind) if each.name[0] != "_"}.keys()


class JsonSerde(Serde[Any]):
    """JSON in UTF-8, by orjson. For topics; what it writes is JSON's idea of the value, not always the same value.

    None, bool, int of 64 bits, finite float, str, list and dict with str keys come back as they were. What
    orjson converts on the way out stays converted: a tuple comes back as a list; datetime, date, time, UUID, Enum and
    dataclass as text, number or dict. Fields of a dataclass whose name begins with an underscore are left out; one
    without a value is refused. An int beyond 64 bits in JSON that another program wrote is read as a float. nan and
    infinity are refused. Where the value must come back as it was, use `msgpack`.

    Keys of a dict keep their order, so equal dicts may have different bytes: use `msgpack` or `str` for store keys.

    >>> JsonSerde().serialize({"user": "alice", "amount": 3})
    b'{"user":"alice","amount":3}'
    """

    saved_name = "penstock.plugins.serdes.json.JsonSerde"
    immutable_types = frozenset({bool})
    checked_types = frozenset({str, int})

    def serialize(self, value: Any) -> bytes:
        """Return `value` as JSON. Raises SerdeError that names what JSON cannot represent."""
        try:
            return dump_finite(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise SerdeError(
                f"serde 'json': cannot write {type(value).__name__} {reprlib.repr(value)}: {error}; "
                "convert it to what JSON has, or name another serde ('msgpack' keeps Python's types)"
            ) from error

    def deserialize(self, data: bytes) -> Any:
        """Return the value of the JSON text. Raises SerdeError with the place of a mistake."""
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            around = bytes(data[max(0, error.pos - 20) : error.pos + 20])
            raise SerdeError(
                f"serde 'json': not JSON: {error} near {around!r} of {len(data)} bytes; "
                "name the serde it was written with"
            ) from error
