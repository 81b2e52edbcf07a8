"""RetainedStore: the base of window and session stores, with rows in buckets of time that expire."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any, ClassVar

from penstock import BytesStore, Serde, SessionStoreSpec, StateStore, StoreContext, TopicRows, WindowStoreSpec
from penstock.store.calls import StoreCalls

from ..rows.buckets import BucketKeys, Buckets, Row
from ..rows.key_form import KeyForm
from ..rows.retention import Retention
from ..rows.value_form import ValueForm

TIME = Struct(">q")


class RetainedStore(StateStore):
    """A store over a BytesStore. Its rows have a user's key and times; with the first time they expire.

    `_written`: number of rows written since the last commit.
    """

    tail_bytes: ClassVar[int]
    """Number of bytes behind the user's key in the key of a row."""

    def __init__(
        self,
        spec: WindowStoreSpec | SessionStoreSpec,
        below: BytesStore,
        key_serde: Serde[Any],
        values: ValueForm,
        context: StoreContext,
    ) -> None:
        self.name = spec.name
        self.calls: StoreCalls = StoreCalls()
        self._below = below
        self._buckets = Buckets(below, context.fixed_options["bucket_ms"], self.tail_bytes)
        self.retention = Retention(below, self._buckets, spec.retention_ms, context)
        self.keys = KeyForm(self.name, key_serde)
        self.values = values
        self._written = 0

    @abstractmethod
    def _flush_objects(self) -> None:
        """Write changed objects; for expired ones at most deletions."""

    @abstractmethod
    def _drop_objects(self) -> None:
        """Drop cached objects."""

    def approximate_count(self) -> int:
        """Return about how many rows there are; expired ones count until they are freed."""
        self._flush_objects()
        return self._below.approximate_count() - self.retention.rows()

    def flush(self) -> None:
        """Serialize cached objects, and free expired rows."""
        self._flush_objects()
        self.retention.flush(self._written)
        self._written = 0

    def discard(self) -> None:
        self._drop_objects()
        self._written = 0
        self.retention.discard()

    def close(self) -> None:
        self._drop_objects()

    def _kept(self, first: int, last: int) -> tuple[int, int]:
        """Return the part of a range of times in which there can be rows: each bucket costs a search."""
        return max(first, self.retention.kept_after + 1, 0), min(last, self.retention.newest)

    def _rows_between(self, key_from: Any, key_to: Any, first: int, last: int, *, reverse: bool) -> Iterator[Row]:
        """Return the rows of key_from <= key <= key_to (None: an open end) with first <= time <= last."""
        self.retention.load()
        self._flush_objects()
        low = None if key_from is None else self.keys.to_bytes(key_from)
        high = None if key_to is None else self.keys.to_bytes(key_to)
        return self._buckets.of_keys(low, high, *self._kept(first, last), reverse=reverse)

    def _rows_from(self, row: bytes) -> Iterator[tuple[bytes, Any, int, bytes]]:
        """Yield the unexpired rows from `row` on: each with its key, its first time, and the rest of the row's key."""
        self.retention.load()
        self._flush_objects()
        for row_key, _ in self._below.range(max(row, b"\x00")):  # the empty key has the store's own numbers
            raw, time, rest = self._buckets.parts(row_key)
            yield row_key, self.keys.to_object(raw), time, rest


class RetainedRows(TopicRows):
    """Rows as records of a changelog topic: the user's key, the first time (8 bytes), and the rest of the row's key.

    The rest has `rest_bytes`: zeros where the row has none. The store's own row has the empty key.
    """

    rest_bytes: ClassVar[int]

    def __init__(self, fixed_options: Mapping[str, int], *, has_rest: bool = True) -> None:
        self._has_rest = has_rest
        self._keys = BucketKeys(fixed_options["bucket_ms"], TIME.size + has_rest * self.rest_bytes)

    def record_of(self, row_key: bytes, data: bytes | None) -> tuple[bytes, bytes | None, int | None]:
        if not row_key:
            return row_key, data, None
        key, time, rest = self._keys.parts(row_key)
        return key + TIME.pack(time) + (rest or bytes(self.rest_bytes)), data, time

    def row_of(self, key: bytes, data: bytes | None, timestamp: int) -> tuple[bytes, bytes | None]:
        if not key:
            return key, data
        at = len(key) - self.rest_bytes
        (time,) = TIME.unpack_from(key, at - TIME.size)
        return self._keys.row_key(key[: at - TIME.size], time, key[at:] if self._has_rest else b""), data
