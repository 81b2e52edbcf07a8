"""SinkRecords and StagedRecords: the records that an external sink of a task has collected since the last commit.

Comes in: the records of its source. Goes out: a `SinkWrite`, which the driver makes just before the commit, or a
`StagedWrite`, where records wait in a store first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from ..errors import PenstockError, SinkError, SinkRefusedError
from ..sink import SinkPlace, SinkPosition, SinkRecord, StagedWriter
from ..store.kinds.key_value import KeyValueStore
from .progress import TaskProgress
from .schedules import NEVER

_new = tuple.__new__
_NEXT, _TOPIC = "next_offset", "topic"
"""The numbers that a commit saves: the position in the target, and a checksum of its topic's id."""
_RECORD_BYTES = 200
"""About the bytes of a decoded record in memory, beside those of its key and value in the log."""


@dataclass(frozen=True)
class OpenedSink:
    """A target as of the opening of a task. `topic_id` is that of the topic now.

    `refusals`: by offset, why the target refused a record in an earlier attempt. `staged`: the writer of a target
    without transactions.
    """

    place: SinkPlace
    target: str
    topic_id: str
    position: SinkPosition | None
    refusals: MutableMapping[int, SinkRefusedError] = field(default_factory=dict)
    staged: StagedWriter | None = None


class RefusedBySinkError(PenstockError):
    """A target refused records of `node`. It has none behind the first of them: open the task again, ask a handler."""

    def __init__(self, node: str, refusals: Mapping[int, SinkRefusedError]) -> None:
        super().__init__(str(next(iter(refusals.values()))))
        self.node = node
        self.refusals = refusals


@dataclass(frozen=True)
class SinkWrite:
    """Records for the target of a node, and its positions before and after them."""

    node: str
    records: Sequence[SinkRecord]
    follows: SinkPosition | None
    ends: SinkPosition


@dataclass(frozen=True)
class StagedWrite:
    """What an earlier commit has decided for the target of a node; `write` may be called again."""

    node: str
    write: Callable[[], None]


Failed = Callable[[str, str, object, Exception], None]
"""Asks the handler about a record that a target refused: it returns when the record is to be dropped."""


class CollectedRecords(ABC):
    """The records of one node for its target, since the last commit."""

    def __init__(self, node: str, opened: OpenedSink, progress: TaskProgress, failed: Failed) -> None:
        self._node = node
        self._opened = opened
        self._progress = progress
        self._failed = failed
        self._records: list[SinkRecord] = []
        self._first_offset = 0
        """The target has the records below it."""
        self.size_bytes = 0

    def collect(self, record: Any) -> None:
        """Take the current record of the source, unless the target has it."""
        place = self._progress.current_place()
        assert place is not None, "an external sink is the child of a source"
        batch, column = place
        offset = batch.offsets[column]
        if offset < self._first_offset:
            return
        if self._opened.refusals and (refusal := self._opened.refusals.pop(offset, None)) is not None:
            self._failed(self._node, self._opened.target, record, refusal)
            self._after_refusal()
            return
        self._records.append(_new(SinkRecord, (*record, offset)))
        self.size_bytes += len(batch.keys[column] or b"") + len(batch.values[column] or b"") + _RECORD_BYTES

    def _after_refusal(self) -> None:  # noqa: B027
        """Do what has to follow on a record that was dropped."""

    @property
    def due(self) -> int:
        """The wall clock (ms) by which `take` is to be called though no record came."""
        return NEVER

    @abstractmethod
    def take(self) -> SinkWrite | StagedWrite | None:
        """Return what is to be written before the commit that is made now; None if there is nothing."""


class SinkRecords(CollectedRecords):
    """The records for a target with transactions.

    `saved` are the numbers of the node that the task commits. Raises SinkError for a target that does not fit the last
    commit.
    """

    def __init__(
        self, node: str, opened: OpenedSink, saved: dict[str, int], progress: TaskProgress, failed: Failed
    ) -> None:
        super().__init__(node, opened, progress, failed)
        self._saved = saved
        self._position = opened.position
        if opened.position is not None:
            self._first_offset = opened.position.next_offset
        _check(node, opened, saved)

    def _after_refusal(self) -> None:
        """Commit the record's dead letter before the target gets past it: replays would skip it."""
        self._progress.request_commit()

    def take(self) -> SinkWrite | None:
        """Return the records since the last call for the commit that is made now; None if there are none."""
        if not self._records:
            return None
        records, self._records, self.size_bytes = self._records, [], 0
        follows, topic_id = self._position, self._opened.topic_id
        ends = self._position = SinkPosition(topic_id, records[-1].offset + 1)
        self._saved.update({_NEXT: ends.next_offset, _TOPIC: crc32(topic_id.encode())})
        return SinkWrite(self._node, records, follows, ends)


class StagedRecords(CollectedRecords):
    """The records for a target without transactions: they are put into `store`, and written after a later commit."""

    def __init__(
        self,
        node: str,
        opened: OpenedSink,
        staged: StagedWriter,
        store: KeyValueStore[str, bytes],
        progress: TaskProgress,
        failed: Failed,
    ) -> None:
        super().__init__(node, opened, progress, failed)
        self._writer = staged
        try:
            staged.begin(store, opened.topic_id)
        except SinkError as error:
            raise type(error)(f"external sink {node!r}: {opened.target}: {error}") from error

    @property
    def due(self) -> int:
        due = self._writer.due
        return NEVER if due is None else due

    def take(self) -> StagedWrite | None:
        """Put the records into the store; return the write of what the last commit has decided."""
        now = self._progress.wall_clock
        if not self._records and self.due > now:
            return None
        records, self._records, self.size_bytes = self._records, [], 0
        try:
            write = self._writer.stage(records, now)
        except SinkRefusedError as refusal:
            raise RefusedBySinkError(self._node, refusal.refusals or {records[0].offset: refusal}) from refusal
        if self.due <= now:
            # It is written after this commit, so ask for the next one.
            self._progress.request_commit()
            self._progress.note_change()
        return None if write is None else StagedWrite(self._node, write)


def _check(node: str, opened: OpenedSink, saved: Mapping[str, int]) -> None:
    place, position, topic_id = opened.place, opened.position, opened.topic_id
    if _NEXT not in saved or saved.get(_TOPIC) != crc32(topic_id.encode()):
        return
    if position is None or position.next_offset < saved[_NEXT]:
        found = "is not there" if position is None else f"is {position.next_offset}"
        raise SinkError(
            f"external sink {node!r}: {opened.target}: its position in topic {place.topic!r}, partition "
            f"{place.partition}, {found}, and a commit has passed {saved[_NEXT]}: the target was restored from a "
            "backup, or is another one. Nothing was changed. Bring back the later target. Or `penstock reset` the "
            "application: it reads its input again, and records that the target has are skipped, if the sink reads a "
            f"topic of yours directly. Or set the position to {saved[_NEXT]} in the target, and do without the records "
            "between"
        )
