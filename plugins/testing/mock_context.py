"""MockProcessorContext: one processor alone, with everything it does captured."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from penstock import (
    ENGINE_STATE_BYTES,
    AsyncProcessor,
    ConfigError,
    Duration,
    Entries,
    FlushListener,
    InFlightOptions,
    NodeMetrics,
    Processor,
    PunctuationType,
    Punctuator,
    Record,
    RecordMetadata,
    StateStore,
    StoreBuilder,
    Times,
    TopologyError,
    ValueTransformer,
)
from penstock.plugins.engine.task.local_state.store_context import TaskStoreContext
from penstock.program.in_flight import call_options, key_bytes_of
from penstock.program.serdes import DEFAULTS, resolve_serde
from penstock.store.kinds.timers import TimerStoreSpec
from penstock.store.record_cache import CacheBudget, RecordCache, RecordContext, WaitingWindows
from penstock.store.state_store import built_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.memory import MemoryBackend
from penstock.support.callbacks import check_answer, check_methods, check_result
from penstock.support.names import index_name, timer_store_name
from penstock.support.own_copy import own_copy, own_record
from penstock.support.repeats import Repeats
from penstock.task.async_context import FORWARDS_IN_REQUEST, AskedStore
from penstock.task.making import FORWARDS_TOO_EARLY
from penstock.task.schedule import Schedule
from penstock.task.schedules import Schedules
from penstock.task.timers import Timers
from penstock.world.calls import InlineCalls


class CapturedForward(NamedTuple):
    """A record that was forwarded, and to which child (None: all)."""

    record: Record
    to: str | None


class CapturedPunctuator:
    """A schedule that was asked for. Call `punctuator(time)` to fire it.

    `interval_ms` is 0 for `Times`; `due_ms` is when the schedule is due.
    """

    def __init__(
        self, interval_ms: int, punctuator: Punctuator, clock: PunctuationType, start: int | None, schedule: Schedule
    ) -> None:
        self.interval_ms = interval_ms
        self.punctuator = punctuator
        self.clock = clock
        self.start = start
        self._schedule = schedule
        self._order = schedule.order

    @property
    def due_ms(self) -> int:
        """When it is due first (ms), by its clock."""
        return self._schedule.due

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, or another took its place."""
        return self._schedule.cancelled or self._schedule.order != self._order

    def cancel(self) -> None:
        """Cancel the schedule, or its replacement."""
        self._schedule.cancel()


class MockProcessorContext:
    """A context for one Processor or ValueTransformer, which captures what it forwards, schedules and asks for.

    `stores` are declared as in a topology and held in memory. Set `stream_time`, `wall_clock` and `record_metadata` as
    the test needs.

    >>> from penstock import Processor
    >>> class Twice(Processor):
    ...     def process(self, record):
    ...         self.context.forward(record.with_value(record.value * 2))
    >>> context = MockProcessorContext()
    >>> twice = context.start(Twice())
    >>> twice.process(Record("k", 21, 0))
    >>> context.values()
    [42]
    """

    def __init__(
        self,
        *stores: StoreBuilder,
        application_id: str = "test",
        task_id: str = "0_0",
        node: str = "processor",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.application_id = application_id
        self.task_id = task_id
        self.node = node
        self.config: Mapping[str, Any] = {"user": {}, **(config or {})}
        self.metrics = NodeMetrics()
        self.record_metadata: RecordMetadata | None = None
        self.stream_time = -1
        self.wall_clock = 0
        self.forwarded: list[CapturedForward] = []
        self.punctuators: list[CapturedPunctuator] = []
        self.saved_numbers: dict[str, int] = {}
        self.commits = 0
        self._is_async = self._is_asking = False
        self._cache_budget = CacheBudget(2**63)
        self._begin(None)
        self._stores = {builder.name: self._build(builder) for builder in stores}

    def _build(self, builder: StoreBuilder) -> StateStore:
        index = index_name(builder.name)
        backend = MemoryBackend(Path(f"mock-{uuid.uuid4().hex}"), [builder.name, index])
        weakref.finalize(self, backend.destroy)
        context = TaskStoreContext(
            self.application_id,
            self.task_id,
            DEFAULTS.state_serde,
            builder.traits.fixed_options,
            lambda: self.stream_time,
            lambda: self.wall_clock,
            self.metrics.drop,
            CommitBuffer(backend, index) if builder.traits.has_index else None,
            builder.traits.expires,
            RecordCache(builder.name, self._cache_budget),
            Repeats(lambda: self.wall_clock),
        )
        return built_store(builder, CommitBuffer(backend, builder.name), context)

    def start(self, processor: Any) -> Any:
        """Call `init` and return the processor."""
        if not isinstance(processor, (Processor, ValueTransformer)):
            raise ConfigError(f"expected a Processor or ValueTransformer, found {processor!r}")
        self._begin(processor)
        self._is_async = isinstance(processor, AsyncProcessor)
        check_methods(f"node {self.node!r}", processor)
        before = len(self.forwarded)
        processor.init(self)
        if len(self.forwarded) > before:
            raise TopologyError(f"node {self.node!r}: init {FORWARDS_TOO_EARLY}")
        self._schedules.end(self.node)
        return processor

    def _begin(self, processor: object) -> None:
        self._schedules = Schedules({}, lambda: None)
        self._schedules.begin(self.node, processor)
        self._timers = Timers(_raise)
        if isinstance(processor, Processor) and type(processor).on_timer is not Processor.on_timer:
            name = timer_store_name(self.node)
            self._timers.add(self.node, {name: self._build(TimerStoreSpec(name))}, processor.on_timer)

    # -- what the processor calls

    def forward(self, record: Record, to: str | None = None) -> None:
        """Capture a record."""
        # As in a task, what the processor does to the value afterwards does not count. What is no record is captured.
        is_record = isinstance(record, tuple) and len(record) == len(Record._fields)
        self.forwarded.append(CapturedForward(own_record(record) if is_record else record, to))

    def send(self, record: Any, to: str | None = None) -> None:
        """Capture a record, which may be a plain tuple."""
        self.forward(Record(*record), to)

    def get_store(self, name: str) -> Any:
        """Return a declared store."""
        if name not in self._stores:
            raise TopologyError(
                f"no store {name!r} in this context; declare it: MockProcessorContext(key_value_store({name!r}))"
            )
        store = self._stores[name]
        return AskedStore(store, self.node, lambda: self._is_asking) if self._is_async else store

    def set_flush_listener(self, store: str, listener: FlushListener) -> None:
        """Have `listener` called with the updates of a cached store; `flush` does that."""
        cache = self.get_store(store).record_cache
        if cache is None:
            raise TopologyError(f"store {store!r} has no record cache: declare it with cached=True")
        cache.context = lambda: RecordContext(self.stream_time)
        cache.listen(self.node, listener)

    def schedule(
        self,
        interval: Duration | Times,
        punctuator: Punctuator,
        clock: PunctuationType,
        *,
        start: int | None = None,
        name: str | None = None,
    ) -> CapturedPunctuator:
        """Capture a schedule. Raises the same as a task; outside `init`, the processor has to be started by `start`."""
        now = self.stream_time if clock is PunctuationType.STREAM_TIME else self.wall_clock
        room = ENGINE_STATE_BYTES
        made = self._schedules.add(self.node, interval, punctuator, clock, start, name, now=now, room=lambda: room)
        captured = CapturedPunctuator(made.interval if made.times is None else 0, made.punctuator, clock, start, made)
        self.punctuators.append(captured)
        return captured

    def schedule_when_settled(self, interval: Duration, punctuator: Punctuator, name: str) -> None:
        """Capture a schedule of the wall clock: nothing is in front of this context."""
        self.schedule(interval, punctuator, PunctuationType.WALL_CLOCK_TIME, name=name)

    def offsets_read_in_front(self) -> int:
        """Return 0: nothing is in front of this context."""
        return 0

    def held_back_in_front_at(self) -> int:
        """Return -1: nothing is in front of this context."""
        return -1

    @property
    def waiting_windows(self) -> WaitingWindows:
        """Windows that nobody flushes."""
        return self._cache_budget.windows

    def guarded(self, run: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return `run`: there is no handler here."""
        return run

    def batched(
        self,
        compute: Callable[[Sequence[Any]], Sequence[Any]],
        emit: Callable[[Any, Any], None],
        max_records: int,
        max_wait: Duration,
    ) -> Callable[[Any], None]:
        """Return a function that works on each record at once, as a batch of one."""

        def run(record: Any) -> None:
            (result,) = compute([record])
            emit(record, result)

        return run

    def in_flight(
        self,
        call: Callable[[Any], Callable[[], Any]],
        emit: Callable[[Any, Any], None],
        key_bytes: Callable[[Any], bytes],
        store: str,
        options: InFlightOptions,
    ) -> Callable[[Any], None]:
        """Return a function that makes each call at once; an error of the call is raised."""
        calls = InlineCalls()

        def run(record: Any) -> None:
            key_bytes(record)
            future = calls.submit(call(record), options.timeout_ms / 1000, is_async=options.is_async)
            result = future.result()
            check_answer(result)
            emit(record, result)

        return run

    def in_calls(self, processor: AsyncProcessor) -> Callable[[Any], None]:
        """Return a function that calls the methods of an AsyncProcessor at once; an error of its call is raised."""
        where = f"node {self.node!r}"

        def ask(record: Record) -> Callable[[], Any]:
            before = len(self.forwarded)
            self._is_asking = True
            try:
                request = processor.request(record)
            finally:
                self._is_asking = False
            if len(self.forwarded) > before:
                del self.forwarded[before:]
                raise TopologyError(f"{where} {FORWARDS_IN_REQUEST}")
            return partial(processor.call, own_copy(request))

        serdes = (resolve_serde(each, "msgpack", where) for each in (processor.key_serde, processor.value_serde))

        def handle(record: Record, result: Any) -> None:
            check_result(processor.process_result(record, result), "process_result")

        return self.in_flight(
            ask,
            handle,
            key_bytes_of(*serdes),
            "",
            call_options(
                self.node, processor.call, processor.capacity, processor.max_pending, processor.timeout,
                processor.order, processor.retries,
            ),
        )  # fmt: skip

    def in_batches(
        self, process_batch: Callable[[Sequence[Record]], None], max_records: int, max_wait: Duration
    ) -> Callable[[Any], None]:
        """Return a function that processes each record at once, as a batch of one."""
        return lambda record: process_batch((record,))

    def timer(self, key: Any, at: int, clock: PunctuationType) -> None:
        """Set a timer; `fire_timers` calls `on_timer`. Raises the same as a task."""
        self._timers.set(self.node, key, at, clock)

    def cancel_timer(self, key: Any, clock: PunctuationType) -> None:
        """Remove a timer."""
        self._timers.cancel(self.node, key, clock)

    def timers(self, clock: PunctuationType) -> Entries[Any, int]:
        """Iterate over (key, at) of the timers that are set."""
        return self._timers.entries(self.node, clock)

    def current_stream_time_ms(self) -> int:
        """Return `stream_time`."""
        return self.stream_time

    def current_system_time_ms(self) -> int:
        """Return `wall_clock`."""
        return self.wall_clock

    def commit(self) -> None:
        """Count a request for a commit."""
        self.commits += 1

    # -- what the test does and reads

    def fire_timers(self) -> None:
        """Call `on_timer` for the timers that are due at `stream_time` and at `wall_clock`, in a task's order."""
        self._timers.fire(PunctuationType.STREAM_TIME, self.stream_time)
        self._timers.fire(PunctuationType.WALL_CLOCK_TIME, self.wall_clock)

    def flush(self) -> None:
        """Call the flush listeners, as a commit does."""
        for store in self._stores.values():
            if store.record_cache is not None:
                store.record_cache.flush()

    def records(self, to: str | None = None) -> list[Record]:
        """Return the forwarded records; with `to`, those that this child would have got."""
        return [each.record for each in self.forwarded if to is None or each.to in (None, to)]

    def values(self) -> list[Any]:
        """Return the values of the forwarded records."""
        return [each.record.value for each in self.forwarded]


def _raise(node: str, error: Exception | SystemExit) -> None:
    raise error
