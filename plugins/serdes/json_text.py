"""JSON data as text, and headers and bytes as JSON data, for the command line and the HTTP server."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from penstock import Headers


def dump_json(data: Any) -> bytes:
    """Return JSON data as text.

    >>> dump_json({"a": [1, 2.5]}), dump_json(2**70)
    (b'{"a":[1,2.5]}', b'1180591620717411303424')
    """
    try:
        return orjson.dumps(data)
    except TypeError:  # integers of more than 64 bits, lone surrogates
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


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


def bytes_of_json(value: Any) -> bytes | None:
    """Return the bytes that `bytes_to_json` shows as `value`. Raises ValueError for something else."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Mapping) and set(value) == {"base64"}:
        return b64decode(value["base64"], validate=True)
    raise ValueError(f'expected text, null or {{"base64": text}}, found {value!r}')


def dump_lines(first: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> bytes:
    r"""Return a line of JSON for each row of `columns`, which are equally long; each begins with what is in `first`.

    >>> dump_lines({"task": "0_0"}, {"key": ["a", "b"], "value": [1, [2]]}).splitlines()
    [b'{"task":"0_0","key":"a","value":1}', b'{"task":"0_0","key":"b","value":[2]}']
    """
    beginning, names = dump_json(first)[:-1] + b",", list(columns)
    rows = (dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return b"".join([beginning + dump_json(row)[1:] + b"\n" for row in rows])
