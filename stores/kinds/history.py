"""History: frees the versions of a versioned store that are gone, by an index in the order of time."""

from __future__ import annotations

from itertools import islice
from struct import Struct

from penstock import BytesStore

from ..rows.escaping import escaped, unescaped
from ..rows.time_index import IndexBuild, TimeIndex

TIME = Struct(">Q")
"""A timestamp behind an escaped key."""
DELETED = b""
"""The content of the row of a version that is a deletion."""
META_ROW = b""
"""The key of the store's own row."""
LAST_TIME = 2**63 - 1

_FREED_ROWS = 4_096
"""How many rows a commit frees, or adds to an index that is built, at least; a larger one twice as many as it puts."""


class History:
    """The keys with versions to free, by the time when they can be freed.

    A version is gone when the next newer one of its key is at least as old as the bound, and a deletion when it is that
    old itself. So a version that has an older one, or is a deletion, is in the index, under the end of the bucket
    of time that it is in: a key that is often put has one row for each bucket, and its versions may be kept for as much
    longer. When the bound is past that time, the key's rows are looked through from the oldest one on.

    Rows are freed on this host only: what is gone is hidden by the rows that stay, and a changelog topic is compacted.
    A key's rows are freed in the order of time, so an older version never reappears.
    """

    def __init__(self, below: BytesStore, index: BytesStore, history_ms: int) -> None:
        self._below = below
        self._times = TimeIndex(index)
        self._build = IndexBuild(index)
        self._bucket_ms = max(1, history_ms // 4)
        self._noted: dict[bytes, int] = {}
        self._notes = 0
        self._last_key: bytes | None = None

    def note(self, key: bytes, timestamp: int) -> None:
        """Record a version that has an older one or is a deletion."""
        due = min((timestamp // self._bucket_ms + 1) * self._bucket_ms - 1, LAST_TIME)
        self._notes += 1
        if self._noted.get(key) != due:
            self._noted[key] = due
            self._times.put(due, key)

    def flush(self, bound: int) -> None:
        """Free some of what is gone at `bound`; build a part of the index if it is not complete."""
        limit = max(_FREED_ROWS, 2 * self._notes)
        if not self._build.is_complete:
            self._build.step(self._below, self._add, limit)
        done = set[bytes]()
        for due, key in islice(self._times.rows(bound), limit):
            if limit <= 0:
                break
            if key not in done:  # its rows are still there until the commit
                gone = self._gone(key, bound, limit)
                self._below.free(gone, locally=True)
                limit -= len(gone)
                if limit <= 0:
                    break  # there may be more of this key
                done.add(key)
            limit -= 1
            self._times.remove(due, key)
        self._forget()

    def discard(self) -> None:
        """Drop what was recorded since the last commit, which failed."""
        self._forget()
        self._last_key = None

    def _forget(self) -> None:
        self._noted.clear()
        self._notes = 0

    def _gone(self, key: bytes, bound: int, limit: int) -> list[bytes]:
        """Return the rows of a key that are gone, the oldest `limit` ones."""
        start = escaped(key)
        end = start + TIME.pack(min(bound, LAST_TIME) + 1)
        rows = list(islice(self._below.range(start, end), limit + 1))
        if rows and (len(rows) > limit or rows[-1][1] != DELETED):
            rows.pop()  # it is valid at the bound
        return [row for row, _ in rows]

    def _add(self, row: bytes, data: bytes) -> None:
        if row == META_ROW:
            return
        key, at = unescaped(row)
        if key == self._last_key or data == DELETED:
            self.note(key, TIME.unpack_from(row, at)[0])
        self._last_key = key
