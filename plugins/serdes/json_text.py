"""Values, headers and bytes as JSON, for the command line and the HTTP server."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import orjson

from penstock import Headers


def dump_json(value: Any) -> bytes:
    """Return `value` as JSON; what JSON lacks becomes text (bytes: base64), a tuple or a set becomes a list.

    A named tuple, such as the key of a window, becomes an object.

    >>> dump_json({"a": (1, 2.5), 3: b"x"})
    b'{"a":[1,2.5],"3":"eA=="}'
    >>> dump_json(2**70)
    b'1180591620717411303424'
    """
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # integers of more than 64 bits, keys that are no scalars
        text = json.dumps(_text_keys(value), default=_plain, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")  # a lone surrogate, as JSON writes it


def headers_to_json(headers: Headers) -> list[list[Any]]:
    """Return headers as pairs; a value that is not UTF-8 becomes {"base64": ...}."""
    return [[name, bytes_to_json(value)] for name, value in headers]


def bytes_to_json(value: bytes | None) -> Any:
    """Return bytes as JSON shows them: as text, or as {"base64": ...} where they are not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b64encode(value).decode()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    return str(value)


def _text_keys(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else dump_json(key).decode(): _text_keys(each) for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_text_keys(each) for each in value]
    return value
