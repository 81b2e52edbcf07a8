"""OpenSinks: the targets outside of the log that a task writes to: opening them, and writing before each commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping, Sequence

from penstock import (
    Application,
    Log,
    SinkError,
    SinkMovedError,
    SinkPlace,
    SinkPosition,
    SinkRecord,
    SinkRefusedError,
    SinkUnavailableError,
    SinkWriter,
    SourceNode,
    StagedSink,
    StagedWriter,
    TaskId,
    TopicPartition,
    World,
)
from penstock.program.external_sink import external_sinks
from penstock.task.sinks import OpenedSink, RefusedBySinkError, SinkWrite, StagedWrite

_log = logging.getLogger("penstock.worker")

Refusals = Mapping[str, MutableMapping[int, SinkRefusedError]]
"""By node and offset, why a target refused a record."""


class OpenSinks:
    """The open targets of one task. A thread calls it at a time."""

    def __init__(self, application: Application, task_id: TaskId, world: World) -> None:
        self._application = application
        self._task_id = task_id
        sinks = external_sinks(application.program.subtopology(task_id.subtopology))
        self._sinks = {node: (source, world.sink(node, sink)) for node, (source, sink) in sinks.items()}
        self._writers: dict[str, SinkWriter] = {}
        self._staged: dict[str, StagedWriter] = {}
        self._opened: dict[str, OpenedSink] = {}

    def open(
        self,
        sources: Sequence[tuple[TopicPartition, SourceNode]],
        topic_ids: Mapping[str, str],
        log: Log,
        refusals: Refusals,
    ) -> None:
        """Open the targets that are not open, and check their positions against the log.

        Raises SinkUnavailableError, and SinkError for a target that does not fit the program or the log.
        """
        for node, (source, sink) in self._sinks.items():
            if node in self._opened:
                continue
            partition = next(each for each, of in sources if of.name == source.name)
            application_id = self._application.id
            if not isinstance(sink, StagedSink):
                # A topic that grows keeps its positions in the target when the application is resharded. Staged
                # records were written before that, and tasks of the new layout begin at the log's positions.
                application_id = self._application.given_id or application_id
            place = SinkPlace(application_id, node, partition.topic, partition.partition)
            target = str(sink)
            staged = position = None
            try:
                if isinstance(sink, StagedSink):
                    staged = self._staged[node] = sink.open(place)
                else:
                    writer = self._writers[node] = sink.open(place)
                    position = writer.position
            except SinkError as error:
                raise self._named(node, target, error) from error
            topic_id = topic_ids.get(partition.topic, "")
            if position is not None:
                where = f"external sink {node!r}: {target}: its position in {partition} is {position.next_offset}"
                _check_topic(where, position, topic_id)
                _check_end(where, position, log.end_offsets([partition], stable=False)[partition])
            self._opened[node] = OpenedSink(place, target, topic_id, position, refusals.get(node, {}), staged)

    @property
    def opened(self) -> Mapping[str, OpenedSink]:
        """The targets as of the opening, by node."""
        return self._opened

    def write(self, writes: Sequence[SinkWrite | StagedWrite]) -> None:
        """Write the records of each node. Where a target refuses some, write all before the first one that it refuses.

        Raises RefusedBySinkError with that one, and as `SinkWriter.write`.
        """
        for each in writes:
            try:
                if isinstance(each, StagedWrite):
                    each.write()
                else:
                    self._write(each.node, each.records, each.follows, each.ends)
            except SinkError as error:
                raise self._named(each.node, self._opened[each.node].target, error) from error

    def _write(
        self, node: str, records: Sequence[SinkRecord], follows: SinkPosition | None, ends: SinkPosition
    ) -> None:
        try:
            self._writers[node].write(records, follows, ends)
        except SinkRefusedError as refusal:
            if len(records) == 1:
                raise RefusedBySinkError(node, {records[0].offset: refusal}) from refusal
            # Halves that the target takes stay: it may be ahead of the log, and each half has its position.
            half = len(records) // 2
            middle = SinkPosition(ends.topic_id, records[half - 1].offset + 1)
            self._write(node, records[:half], follows, middle)
            self._write(node, records[half:], middle, ends)

    def _named(self, node: str, target: str, error: SinkError) -> SinkError:
        where = f"application {self._application.id!r}, task {self._task_id}, external sink {node!r}: {target}"
        kind = next((each for each in (SinkUnavailableError, SinkMovedError) if isinstance(error, each)), SinkError)
        return kind(f"{where}: {error}")

    def close(self) -> None:
        """Close all; an error of one does not keep the others open."""
        writers: list[tuple[str, SinkWriter | StagedWriter]] = [*self._writers.items(), *self._staged.items()]
        self._writers, self._staged, self._opened = {}, {}, {}
        for node, writer in writers:
            try:
                writer.close()
            except Exception as error:
                _log.warning("external sink %r: closing raised %s: %s", node, type(error).__name__, error)


def _check_topic(where: str, position: SinkPosition, topic_id: str) -> None:
    if position.topic_id and topic_id and position.topic_id != topic_id:
        raise SinkError(
            f"{where}, of a topic with the id {position.topic_id}, and this one has the id {topic_id}: the topic was "
            "deleted and made again, as by `penstock reset` or `penstock state restore`, or this is another log. What "
            "the target has came from the earlier one. After a reset, all of it is written again: delete it, and this "
            "position, and start again; or give the sink another name and another table. After a restore, only what "
            "came since the backup is written again: delete that, and this position"
        )


def _check_end(where: str, position: SinkPosition, end: int) -> None:
    """Refuse a target with records that the log does not have: new records would be taken for those."""
    if position.next_offset > end:
        raise SinkError(
            f"{where}, and the log ends at {end}: the log lost records, or is another one. Nothing was changed: bring "
            "back the log, or delete in the target what came from the lost records, and set its position to the log's "
            "end"
        )
