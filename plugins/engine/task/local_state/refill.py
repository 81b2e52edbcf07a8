"""Refills read-only stores: their processor gets the topic's records again, up to the task's last commit (KIP-813)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock import (
    Application,
    GlobalStore,
    Log,
    Processor,
    ProcessorNode,
    Record,
    StateStore,
    StoreBackend,
    StoreContext,
    Subtopology,
    TaskId,
    TopicPartition,
)
from penstock.program.nodes import ReadOnlyStore
from penstock.store import Changes
from penstock.store.state_store import built_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.support.names import index_name
from penstock.support.repeats import Repeats
from penstock.task.failures import FailureKey
from penstock.task.input_queue import TaskInput
from penstock.task.task import Task

from ..locations import read_up_to

_PORTION_BYTES = 8 * 1024 * 1024
"""About how many bytes of memory the changes of one write may take."""
_CHUNK = 10_000

MakeContext = Callable[[str, CommitBuffer | None], StoreContext]
"""(store, its index) -> the StoreContext of the store."""


@dataclass(frozen=True)
class Refill:
    """How one read-only store of a task is filled again.

    `ends` are the task's committed positions in the store's topic. `attempt` returns how often a failure was met.
    """

    application: Application
    task_id: TaskId
    spec: ReadOnlyStore
    log: Log
    ends: Mapping[TopicPartition, int]
    attempt: Callable[[FailureKey], int]

    def changes(
        self,
        backend: StoreBackend,
        make_context: MakeContext,
        connect: Callable[[Task], None],
        pause: Callable[[], None],
    ) -> Iterator[Changes]:
        """Yield the changes to write to `backend`, where the store is empty, a portion at a time.

        Each is written before the next is asked for. `connect` gives the store the clocks of the task that fills it.
        `pause` is called after each fetch: it may wait, and its errors end the refill.
        """
        name = self.spec.store.name
        buffer = CommitBuffer(backend, name)
        index = CommitBuffer(backend, index_name(name)) if self.spec.store.traits.has_index else None
        store = built_store(self.spec.store, buffer, make_context(name, index))
        starts = self.log.start_offsets(list(self.ends))
        below = self.application.program.subtopology(self.task_id.subtopology).children[self.spec.processor.name]
        positions = {each: min(starts[each], end) for each, end in self.ends.items()}
        task = filling_task(self.application, self.task_id, self.spec, store, positions, self.attempt, below)
        connect(task)
        try:
            for partition, end in self.ends.items():
                for batch in read_up_to(self.log, partition, min(starts[partition], end), end):
                    task.feed(batch)
                    while task.process(_CHUNK):
                        pass
                    task.end_batches()
                    task.take_outputs()  # dead letters, which were sent when the records were first processed
                    store.flush()
                    pause()
                    if buffer.size_bytes >= _PORTION_BYTES:
                        yield from self._portion(buffer, index)
            yield from self._portion(buffer, index)
        finally:
            task.close()
            store.close()

    def _portion(self, buffer: CommitBuffer, index: CommitBuffer | None) -> Iterator[Changes]:
        buffers = [buffer] if index is None else [buffer, index]
        rows = {each.name: each.local_changes(each.changes()) for each in buffers}
        yield {name: changes for name, changes in rows.items() if changes}
        for each in buffers:
            each.clear()


def filling_task(
    application: Application,
    task_id: TaskId,
    spec: GlobalStore | ReadOnlyStore,
    store: StateStore,
    positions: Mapping[TopicPartition, int],
    attempt: Callable[[FailureKey], int],
    below: Sequence[str] = (),
    *,
    saved: bytes = b"",
    wall_clock_ms: int = 0,
    repeats: Repeats | None = None,
) -> Task:
    """Return a task that fills one store from its topic, from `positions` on; its driver commits nothing.

    What the processor forwards to the nodes `below` is ignored. The others: as for `Task`.
    """
    source, processor = spec.source, spec.processor
    ignoring = [ProcessorNode(name, _Ignore, (processor.name,)) for name in below]
    edges = {source.name: (processor.name,), processor.name: tuple(below)} | dict.fromkeys(below, ())
    return Task(
        task_id,
        Subtopology(task_id.subtopology, (source, processor, *ignoring), edges, (spec.store,)),
        application.id,
        application.settings,
        [TaskInput(each, source, position) for each, position in positions.items()],
        {spec.store.name: store},
        {},
        attempt=attempt,
        takes_whole_batches=True,
        saved=saved,
        wall_clock_ms=wall_clock_ms,
        repeats=repeats,
    )


class _Ignore(Processor):
    """Ignores forwarded records: they were forwarded when the records were first processed."""

    def process(self, record: Record) -> None:
        """Do nothing."""
