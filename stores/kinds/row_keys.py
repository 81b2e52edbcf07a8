"""Where the key of an entry is in a row, for each kind of store: for a reader that has no store, only its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct
from typing import Any

from penstock import RowKeys, Serde, StoreSpec
from penstock.store.envelope import PLAIN
from penstock.store.specs import declared_serdes

from ..rows.escaping import unescaped

OWN_ROW = b""
"""The key of a store's row of numbers, in the kinds that have one."""


def _itself(row: bytes) -> bytes:
    return row


def _behind_bucket(row: bytes) -> bytes:
    return unescaped(row, 8)[0]


def _first_part(row: bytes) -> bytes:
    return unescaped(row)[0]


_TIME = Struct(">q")
_KEYS: Mapping[str, Callable[[bytes], bytes]] = {
    "key_value": _itself,
    "lru_map": _itself,
    "window": _behind_bucket,
    "session": _behind_bucket,
    "versioned": _first_part,
    "list": _first_part,
    "timers": lambda row: row[1:],
}
_EXPIRED = 1
"""The place of the time up to which everything has expired, in the row of numbers."""
_HAVE_OWN_ROW = frozenset({"window", "session", "versioned", "list"})


def row_keys_of(spec: StoreSpec, kind: str) -> RowKeys | None:
    """Return the position of keys in a store's rows; None for a kind whose package does not declare it."""
    if spec.row_keys is not None:
        return spec.row_keys
    return RowKeys(key_in_row(kind), _key_serde, merged_numbers) if kind in _KEYS else None


def key_in_row(kind: str) -> Callable[[bytes], bytes | None]:
    """Return a function from the key of a row of one of our kinds to its entry's key; None for the store's own row."""
    return partial(_unless_own, _KEYS[kind]) if kind in _HAVE_OWN_ROW else _KEYS[kind]


def _unless_own(key_of: Callable[[bytes], bytes], row: bytes) -> bytes | None:
    return None if row == OWN_ROW else key_of(row)


def _key_serde(spec: StoreSpec) -> str | Serde[Any] | None:
    return declared_serdes(spec).get("key_serde")


def time_in_row(kind: str, row: bytes) -> int:
    """Return the first time (ms) in the key of a row: the start of a window, the end of a session."""
    return int(_TIME.unpack_from(row, unescaped(row, 8)[1])[0])


def merged_numbers(first: bytes, second: bytes, *, keeps_rows: bool = False) -> bytes:
    """Return the merged row of numbers for a store with the entries of two others: the higher one of each number.

    The numbers are the newest time, the time up to which everything has expired, and the last number given to an entry.
    `keeps_rows`: rows that have expired in only one of the two stay.
    """
    form = Struct(f">{(len(first) - len(PLAIN)) // 8}q")
    one, other = (form.unpack_from(each, len(PLAIN)) for each in (first, second))
    merged = list(map(max, one, other))
    if keeps_rows:
        merged[_EXPIRED] = min(one[_EXPIRED], other[_EXPIRED])
    return PLAIN + form.pack(*merged)
