"""TimeIndex and IndexBuild: the keys of a store in the order of time, and the pass that builds this index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from struct import Struct

from penstock import BytesStore

_STATE = b""
"""The key of the index's row that says how far it is built. The engine deletes it when it restores the store."""
_TIME = Struct(">Q")
_SIGN = 2**63
_HEAD = 9


class TimeIndex:
    """Times and keys in the index of a store, the earliest first: what happens when, without a scan over the store.

    A row's key is the clock (a byte above 0, so that several clocks can share an index), the time (8 bytes, ordered as
    signed numbers are) and the key. The entry of this key should be looked at when this time is reached. The row may be
    out of date: its reader compares it with the entry.
    """

    def __init__(self, index: BytesStore, clock: int = 1) -> None:
        self._index = index
        self._clock = bytes((clock,))

    def put(self, time: int, key: bytes) -> None:
        """Add `key` at `time` (ms); idempotent."""
        self._index.put(self.row(time, key), b"")

    def remove(self, time: int, key: bytes) -> None:
        """Remove `key` at `time`, if it is there."""
        self._index.put(self.row(time, key), None)

    def rows(self, up_to: int | None = None, start: bytes | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield (time, key) of time <= `up_to` (None: all), the earliest first, and by key within a time.

        `start` is where to begin: the `row` of the first one, or bytes above or below it.
        """
        end = bytes((self._clock[0] + 1,)) if up_to is None or up_to >= _SIGN - 1 else self.row(up_to + 1, b"")
        for row, _ in self._index.range(start or self._clock, end):
            yield _TIME.unpack_from(row, 1)[0] - _SIGN, row[_HEAD:]

    def first(self) -> int | None:
        """Return the earliest time, or None."""
        return next((time for time, _ in self.rows()), None)

    def sweep(self, up_to: int, limit: int) -> list[tuple[int, bytes]]:
        """Remove and return up to `limit` rows of time <= `up_to`, the earliest first."""
        found = list(islice(self.rows(up_to), limit))
        for time, key in found:
            self.remove(time, key)
        return found

    def row(self, time: int, key: bytes) -> bytes:
        """Return the key of a row; rows are in the order of these."""
        return self._clock + _TIME.pack(time + _SIGN) + key


class IndexBuild:
    """The pass over a store that builds its index, and how far it is.

    The index's row b"" has the progress. Without this row nothing is built; otherwise it has the form of the rows, and
    the last key of the pass if that is not over. It is committed with the rows, so a pass continues where the last
    commit left it, in any process. While a pass runs, the store adds what it puts. `form` identifies how rows are made
    of entries (at most 255 bytes): when it changes, the index is built again.
    """

    def __init__(self, index: BytesStore, form: bytes = b"") -> None:
        self._index = index
        self._head = bytes((len(form),)) + form

    @property
    def is_complete(self) -> bool:
        """Whether the index has every entry of the store."""
        return self._index.get(_STATE) == self._head

    def begin_empty(self) -> None:
        """Mark the index as complete: the store has no entries yet."""
        self._index.put(_STATE, self._head)

    def step(self, store: BytesStore, add: Callable[[bytes, bytes], None], limit: int) -> bool:
        """Call `add` with the next `limit` entries of the store; return whether the index is complete now."""
        state = self._index.get(_STATE)
        if state == self._head:
            return True
        last = state[len(self._head) :] if state is not None and state.startswith(self._head) else None
        entries = list(islice(store.range(last), limit))
        for key, value in entries:
            add(key, value)
        self._index.put(_STATE, self._head + entries[-1][0] + b"\x00" if len(entries) == limit else self._head)
        return len(entries) < limit
