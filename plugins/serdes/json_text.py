"""Values, headers and bytes as JSON, for the command line and the HTTP server."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
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


def dump_lines(first: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> bytes:
    r"""Return a line of JSON for each row of `columns`, which are equally long; each begins with what is in `first`.

    >>> dump_lines({"task": "0_0"}, {"key": ["a", "b"], "value": [1, b"x"]}).splitlines()
    [b'{"task":"0_0","key":"a","value":1}', b'{"task":"0_0","key":"b","value":"eA=="}']
    >>> dump_lines({"task": "0_0"}, {"key": [2**70]})
    b'{"task":"0_0","key":1180591620717411303424}\n'
    """
    beginning, names = dump_json(first)[:-1] + b",", list(columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    try:
        return b"".join([beginning + orjson.dumps(row, default=_plain, option=options)[1:] for row in rows])
    except TypeError:  # as above
        return b"".join([beginning + dump_json(row)[1:] + b"\n" for row in rows])


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
