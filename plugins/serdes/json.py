"""The `json` serde: documents that any language reads."""

from __future__ import annotations

import reprlib
from typing import Any

import orjson

from penstock import Serde, SerdeError

from .not_finite import check_finite


def dump_finite(value: Any) -> bytes:
    """Return `value` as JSON, by orjson. Raises ValueError, too, with the path of a nan or infinity."""
    data = orjson.dumps(value)
    # Equal values have no nan; to walk through others takes ten times as long.
    if b"null" in data and orjson.loads(data) != value:
        check_finite(value, data)
    return data


class JsonSerde(Serde[Any]):
    """JSON in UTF-8, by orjson. For topics; what it writes is JSON's idea of the value, not always the same value.

    None, bool, int of 64 bits, finite float, str, list and dict with str keys come back as they were. What
    orjson converts on the way out stays converted: a tuple comes back as a list; datetime, date, time, UUID, Enum and
    dataclass as text, number or dict. An int beyond 64 bits in JSON that another program wrote is read as a float. nan
    and infinity are refused. Where the value must come back as it was, use `msgpack`.

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
