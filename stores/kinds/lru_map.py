"""LruMap: a key-value store that drops the least recently used entry when it has too many."""

from __future__ import annotations

from struct import Struct
from typing import Any

from penstock import BytesStore, LruMapSpec, Serde, StoreContext
from penstock.store.calls import StoreCalls
from penstock.store.envelope import unwrap, wrap

from ..rows.key_form import KeyForm
from ..rows.value_form import ValueForm
from .plain import TypedStore

_NUMBER = Struct(">q")
_HEADER = "__penstock.put"
_HEAD = wrap(b"", headers=((_HEADER, _NUMBER.pack(0)),))[: -_NUMBER.size]
"""The beginning of every entry's envelope: a header whose value is the number of the put."""


class LruMap(TypedStore):
    """A KeyValueStore of at most `max_entries` entries; a scan is no use of them.

    Each entry has the number of its put in a header of its envelope, so the order of the puts is in the changelog, and
    a record of a changelog topic has key and value as in a key-value store. `_used` has the keys of all entries as
    bytes, the least recently used one first; None: not read yet.
    """

    def __init__(self, below: BytesStore, key_serde: Serde[Any], value_serde: Serde[Any], max_entries: int) -> None:
        self.name = below.name
        self._below = below
        self.keys = KeyForm(below.name, key_serde)
        self.values = ValueForm(below.name, value_serde)
        self._max_entries = max_entries
        self._used: dict[bytes, None] | None = None
        self._puts = 0
        self.calls: StoreCalls = StoreCalls()

    # ------------------------------------------------------------------ single entries

    def get(self, key: Any) -> Any:
        """Return the value of `key`, or None; if there is one, the entry is the most recently used one."""
        self.calls.gets += 1
        raw = self.keys.to_bytes(key)
        used = self._known()
        if raw not in used:
            return None
        del used[raw]
        used[raw] = None
        data = self._below.get(raw)
        return None if data is None else self.values.to_object(raw, data)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`; None deletes it. Drop the least recently used entry if there are too many."""
        self.calls.puts += 1
        raw = self.keys.to_bytes(key)
        used = self._known()
        if value is None:
            if raw in used:
                del used[raw]
                self._below.put(raw, None)
            return
        data = self.values.to_bytes(raw, value)
        self._puts += 1
        self._below.put(raw, _HEAD + _NUMBER.pack(self._puts) + data[1:])
        used.pop(raw, None)
        used[raw] = None
        while len(used) > self._max_entries:
            oldest = next(iter(used))
            del used[oldest]
            self._below.put(oldest, None)

    def approximate_count(self) -> int:
        return len(self._known())

    # ------------------------------------------------------------------ the commit

    def discard(self) -> None:
        self._used = None

    def close(self) -> None:
        self.discard()

    # ------------------------------------------------------------------ helpers

    def _known(self) -> dict[bytes, None]:
        if self._used is None:
            numbers = {raw: _number(data) for raw, data in self._below.range()}
            self._used = dict.fromkeys(sorted(numbers, key=numbers.__getitem__))
            self._puts = max(numbers.values(), default=0)
        return self._used


def build_lru_map(spec: LruMapSpec, bytes_store: BytesStore, context: StoreContext) -> LruMap:
    """Return the store that `spec` declares, on top of `bytes_store`."""
    key_serde = context.serde(spec.key_serde, spec.name)
    return LruMap(bytes_store, key_serde, context.serde(spec.value_serde, spec.name), spec.max_entries)


def _number(data: bytes) -> int:
    """Return the sequence number of an entry's put; 0 for an entry without one."""
    packed = next((content for name, content in unwrap(data).headers if name == _HEADER), None)
    return 0 if packed is None else int(_NUMBER.unpack(packed)[0])
