"""BatchContext: the context of a BatchProcessor, and the calls of its `process_batch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..clock import Duration, duration_ms
from ..errors import TopologyError
from ..processor import NodeMetrics
from ..program.nodes import ProcessorNode
from ..record import Record, as_record
from ..support.callbacks import check_result
from ..support.own_copy import IMMUTABLE, own_record
from .batches import Batches, Held, HoldingNode, Place
from .context import NodeContext, Shared
from .failures import RECORD_ERRORS, Failures
from .progress import TaskProgress

_Forward = tuple[Any, str | None]


class BatchContext(NodeContext):
    """The context of a BatchProcessor. What is forwarded in a call of `process_batch` is collected, and sent after it.

    So what is due behind the node by the time of one of the records is called before what the next ones forward.
    """

    def __init__(
        self,
        shared: Shared,
        node: ProcessorNode,
        metrics: NodeMetrics,
        forward: Callable[..., None],
        send: Callable[..., None],
    ) -> None:
        super().__init__(shared, node, metrics, forward, send)
        self._call: _Call | None = None

        def forward_or_collect(record: Record, to: str | None = None) -> None:
            # The processor may change the value afterwards.
            if isinstance(record, tuple) and len(record) == len(Record._fields) and not _is_immutable(record):
                record = own_record(record)
            if self._call is None:
                forward(record, to)
            else:
                self._call.collect(record, to)

        def send_or_collect(record: Any, to: str | None = None) -> None:
            forward_or_collect(as_record(record), to)

        forward_or_collect.__qualname__ = send_or_collect.__qualname__ = "forward"  # its name in Python's own errors
        self.forward, self.send = forward_or_collect, send_or_collect
        self._forward = forward

    def in_batches(
        self, process_batch: Callable[[Sequence[Record]], None], max_records: int, max_wait: Duration
    ) -> Callable[[Any], None]:
        """Return a function that holds records for a call of `process_batch`."""
        where = f"node {self.node!r}"
        if type(max_records) is not int or max_records < 1:
            raise TopologyError(f"{where}: max_records is a number of records from 1 on, found {max_records!r}")
        wait_ms = duration_ms(max_wait, f"{where}: max_wait")
        shared = self._shared
        calls = BatchCalls(self, shared.batches, shared.progress, process_batch, self._forward, max_records, wait_ms)
        return shared.batches.add(calls)

    def call(self, call: _Call, process_batch: Callable[[Sequence[Record]], object]) -> None:
        """Call `process_batch`, and collect what it forwards."""
        self._call = call
        try:
            check_result(process_batch(call.records), "process_batch")
        finally:
            self._call = None


class _Records(tuple[Record, ...]):
    """The records of a call. A loop over them makes each the active one."""

    call: _Call

    def __iter__(self) -> Iterator[Record]:
        for place, record in enumerate(super().__iter__()):
            self.call.enter(place)
            yield record


class _Call:
    """A call of `process_batch`, with the active one of its records, and what was forwarded for each."""

    def __init__(self, held: Sequence[Held], progress: TaskProgress) -> None:
        self._held = held
        self._progress = progress
        self._where = Place()
        self._place = len(held) - 1
        self.records = _Records([each[0] for each in held])
        self.records.call = self
        self.forwards: list[list[_Forward]] = [[] for _ in held]
        self._last = 0
        """The place of the last record for which something was forwarded: time does not go back."""

    def enter(self, place: int) -> None:
        """Make a record the active one: for stores, error messages and all that the context says."""
        progress, self._place = self._progress, place
        progress.record, _, source, progress.flushed, progress.stream_time, progress.occasion = self._held[place]
        if source is None:
            progress.input = None
        else:
            self._where.batch, self._where.column = source
            progress.input = self._where

    def collect(self, record: Any, to: str | None) -> None:
        """Keep a forwarded record until the call is over."""
        self._last = max(self._last, self._place)
        self.forwards[self._last].append((record, to))


class BatchCalls(HoldingNode):
    """The held records of a BatchProcessor.

    Nothing that a failed call did may stay, and a store cannot take back what was put. So the task goes back to its
    last commit, and this node gets each record alone until it has committed what failed.
    """

    def __init__(
        self,
        context: BatchContext,
        batches: Batches,
        progress: TaskProgress,
        process_batch: Callable[[Sequence[Record]], None],
        forward: Callable[..., None],
        most: int,
        wait_ms: int,
    ) -> None:
        super().__init__(batches, context.node, self._emit, most, wait_ms)
        self._context = context
        self._progress = progress
        self._process_batch = process_batch
        self._forward = forward
        self._max_records = most
        self._failures: Failures = batches.failures

    def begin(self) -> None:
        super().begin()
        self._most = 1 if self._failures.was_batch(self.name) else self._max_records

    def results(self, held: Sequence[Held]) -> Iterator[tuple[Held, Any]]:
        """Yield each record with what was forwarded for it, and the error of a record that was alone."""
        progress, call = self._progress, _Call(held, self._progress)
        before = progress.current()
        failed: Exception | SystemExit | None = None
        try:
            call.enter(len(held) - 1)
            self._context.call(call, self._process_batch)
        except RECORD_ERRORS as error:
            if len(held) > 1:
                self._failures.batch(self.name, error)
            failed = error
        finally:
            progress.set_current(before)
        for each, forwards in zip(held, call.forwards, strict=True):
            yield each, (forwards, failed)

    def _emit(self, record: Any, result: tuple[Sequence[_Forward], Exception | SystemExit | None]) -> None:
        forwards, failed = result
        for forwarded, to in forwards:
            self._forward(forwarded, to)
        if failed is not None:
            raise failed


def _is_immutable(record: Record) -> bool:
    return type(record[1]) in IMMUTABLE and type(record[0]) in IMMUTABLE
