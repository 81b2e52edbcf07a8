"""RowListStore: a row for each value of a key, in the order of keys and of arrival.

The key of a row is the escaped key and a number (8 bytes) that grows with each value added to the store. The row b""
has the last number.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any

from penstock import BytesStore, Entries, ListStore, ListStoreSpec, StoreContext, StoreError
from penstock.store.calls import StoreCalls
from penstock.store.envelope import PLAIN

from ..rows.escaping import escaped, unescaped
from ..rows.key_form import KeyForm
from ..rows.scan import Scan
from ..rows.value_form import ValueForm

_META_ROW = b""
_NUMBER = Struct(">Q")
_AFTER_META = b"\x00"
_AFTER_ALL = b"\xff" * 9
"""Behind an escaped key: above every number."""
_MOST_KNOWN = 131_072
"""Of how many values the rows are known in memory; some 30 MB."""


class RowListStore(ListStore[Any, Any]):
    """A ListStore over a BytesStore.

    While there are not too many values, `_rows_of` has the rows of each key, so deleting needs no search: most keys
    that an operator deletes, or looks for, are not there.
    """

    def __init__(self, below: BytesStore, keys: KeyForm, values: ValueForm) -> None:
        self.name = below.name
        self._below = below
        self._keys = keys
        self._values = values
        self._last: int | None = None
        self._saved: int | None = None
        self._rows_of: dict[bytes, list[bytes]] | None = None
        self._count = 0
        self._are_too_many = False
        self.calls: StoreCalls = StoreCalls()

    def add(self, key: Any, value: Any) -> None:
        self.calls.puts += 1
        raw = self._keys.to_bytes(key)
        if value is None:
            raise StoreError(f"store {self.name!r}: a value of None cannot be added; `delete` deletes a key's values")
        data = self._values.to_bytes(raw, value)
        known = self._known()
        self._last = (self._read_last() if self._last is None else self._last) + 1
        row = escaped(raw) + _NUMBER.pack(self._last)
        self._below.put(row, data)
        if known is not None:
            known.setdefault(raw, []).append(row)
            self._count += 1

    def delete(self, key: Any) -> None:
        self.calls.puts += 1
        raw, known = self._keys.to_bytes(key), self._known()
        rows = [row for row, _ in self._rows(raw)] if known is None else known.pop(raw, ())
        for row in rows:
            self._below.put(row, None)
        if known is not None:
            self._count -= len(rows)

    def get(self, key: Any) -> list[Any]:
        self.calls.gets += 1
        raw, known = self._keys.to_bytes(key), self._known()
        if known is not None and raw not in known:
            return []
        return [self._values.to_object(raw, data) for _, data in self._rows(raw)]

    def range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        low = _AFTER_META if start is None else escaped(self._keys.to_bytes(start))
        high = None if end is None else escaped(self._keys.to_bytes(end)) + _AFTER_ALL
        return Scan(self._decoded(self._below.range(low, high)))

    def approximate_count(self) -> int:
        return self._below.approximate_count() - (self._below.get(_META_ROW) is not None)

    def flush(self) -> None:
        """Write the last number."""
        if self._last != self._saved and self._last is not None:
            self._below.put(_META_ROW, PLAIN + _NUMBER.pack(self._last))
            self._saved = self._last

    def discard(self) -> None:
        self._last = self._saved = self._rows_of = None
        self._count, self._are_too_many = 0, False

    def close(self) -> None:
        self.discard()

    def _known(self) -> dict[bytes, list[bytes]] | None:
        """Return the rows of each key; None if there are too many values."""
        known = self._rows_of
        if known is not None and self._count <= _MOST_KNOWN:
            return known
        if self._are_too_many or known is not None or self._below.approximate_count() > _MOST_KNOWN:
            self._rows_of, self._are_too_many = None, True
            return None
        self._rows_of = known = {}
        for row, _ in self._below.range(_AFTER_META):
            known.setdefault(unescaped(row)[0], []).append(row)
            self._count += 1
        return known

    def _read_last(self) -> int:
        data = self._below.get(_META_ROW)
        return 0 if data is None else int(_NUMBER.unpack_from(data, len(PLAIN))[0])

    def _rows(self, raw: bytes) -> Iterator[tuple[bytes, bytes]]:
        start = escaped(raw)
        return self._below.range(start, start + _AFTER_ALL)

    def _decoded(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[Any, Any]]:
        for row, data in rows:
            raw = unescaped(row)[0]
            yield self._keys.to_object(raw), self._values.to_object(raw, data)


def build_list_store(spec: ListStoreSpec, bytes_store: BytesStore, context: StoreContext) -> RowListStore:
    """Return the store that `spec` declares, on top of `bytes_store`."""
    keys = KeyForm(spec.name, context.serde(spec.key_serde, spec.name))
    return RowListStore(bytes_store, keys, ValueForm(spec.name, context.serde(spec.value_serde, spec.name)))
