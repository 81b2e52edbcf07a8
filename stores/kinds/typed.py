"""TypedStore: the part of a key-value store that does not depend on what it keeps as objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock import BytesStore, Entries, KeyValueStore, Serde

from ..rows.key_form import KeyForm
from ..rows.scan import Scan
from ..rows.value_form import ValueForm


class TypedStore(KeyValueStore[Any, Any]):
    """A KeyValueStore over a BytesStore, whose entries are of a `KeyForm` and a `ValueForm`.

    A subclass has `get` and `put`. If it keeps objects that the BytesStore does not have yet, `flush_cache` writes
    them: scans call it first.
    """

    name: str
    keys: KeyForm
    values: ValueForm
    _below: BytesStore

    def flush_cache(self) -> None:
        """Write to the BytesStore below what is kept as objects only."""

    def range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        """Iterate over start <= key <= end in the order of the serialized keys."""
        return self._scan(start, end, reverse=False)

    def reverse_range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        return self._scan(start, end, reverse=True)

    def prefix_scan(self, prefix: Any, serde: Serde[Any] | None = None) -> Entries[Any, Any]:
        self.flush_cache()
        low = self.keys.to_bytes(prefix, serde)
        return Scan(self._decoded(self._below.range(low, after_prefix(low))))

    def _scan(self, start: Any, end: Any, *, reverse: bool) -> Entries[Any, Any]:
        self.flush_cache()
        low = None if start is None else self.keys.to_bytes(start)
        high = None if end is None else self.keys.to_bytes(end) + b"\x00"
        return Scan(self._decoded(self._below.range(low, high, reverse=reverse)))

    def _decoded(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[Any, Any]]:
        for raw, data in entries:
            yield self.keys.to_object(raw), self.values.to_object(raw, data)


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the least bytes above all that start with `prefix`; None when there are none.

    >>> after_prefix(b"ab"), after_prefix(b"a" + bytes([255])), after_prefix(b"")
    (b'ac', b'b', None)
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None
