"""ProcessorContext: the engine, as a processor sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from ..clock import Cancellable, Duration, PunctuationType, Punctuator, Times
from ..record import Headers, Record, RecordMetadata
from ..store import Entries
from ..store.record_cache import FlushListener, SourceRecord, WaitingWindows
from .handlers import Handler


@dataclass(slots=True)
class NodeMetrics:
    """Counters of one node in one task since it was opened.

    `dropped` counts records by reason: "null_key", "late", "skipped" (by a handler), "deserialization", or a reason of
    the processor's own.
    `user` is for counters of a processor's own.
    """

    records_in: int = 0
    records_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    user: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count records that were dropped, which Kafka Streams adds to `dropped-records-total`."""
        self.dropped[reason] += count

    def add(self, other: NodeMetrics) -> None:
        """Add the counts of the same node in another task, or in an earlier opening of this task."""
        self.records_in += other.records_in
        self.records_out += other.records_out
        self.dropped.update(other.dropped)
        self.user.update(other.user)


CallOrder = Literal["key", "partition", "none"]
"""In which order a node that answers later hands on results; see `InFlightOptions`."""


@dataclass(frozen=True)
class InFlightOptions:
    """How the calls of a node run that takes records and answers later; times in ms.

    `capacity`: calls of a task at once; `max_pending`: records that the node holds, at which the task's input pauses.
    `order`: "key" calls for one record of a key at a time, and hands on the results of a key in the order of arrival;
    "partition" hands on all results in that order; "none" as they come. `retries` decides about a
    call that fails, in place of `processing_handler`. `is_async`: what is called is awaited.
    """

    capacity: int
    max_pending: int
    timeout_ms: int
    order: CallOrder
    retries: Handler | None = None
    is_async: bool = False


class PendingRecord(NamedTuple):
    """A record in flight, as the store of its node keeps it under (arrival number, key)."""

    value: Any
    headers: Headers
    timestamp: int
    stream_time: int
    """The stream time of the record's arrival (ms)."""
    attempt: int
    """The number of the next call, from 1; 0: there is none, as the failure's handler has dropped the record.

    It waits for those that came before it, since nodes behind may not know its time yet.
    """
    source: SourceRecord | None
    """The source record that it was made of; None if a punctuator made it."""


class ValueTransformerContext(Protocol):
    """The context of a node that may not forward."""

    @property
    def application_id(self) -> str:
        """The application's id."""
        ...

    @property
    def task_id(self) -> str:
        """The task's id: sub-topology and partition, e.g. `0_3`."""
        ...

    @property
    def node(self) -> str:
        """The name of this node."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The application's settings, and under `user` what the user put there."""
        ...

    @property
    def metrics(self) -> NodeMetrics:
        """This node's counters."""
        ...

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Topic, partition and offset of the record being processed; None inside a punctuator and in `init`."""
        ...

    def get_store(self, name: str) -> Any:
        """Return a store that this node is connected to, or a global one (to read). Raises TopologyError otherwise."""
        ...

    def current_stream_time_ms(self) -> int:
        """Return the highest timestamp that the task has processed, this record included; -1 before the first."""
        ...

    def current_system_time_ms(self) -> int:
        """Return the driver's wall clock (ms); it does not move while a record is processed, and never goes back."""
        ...

    def schedule(
        self,
        interval: Duration | Times,
        punctuator: Punctuator,
        clock: PunctuationType,
        *,
        start: int | None = None,
        name: str | None = None,
    ) -> Cancellable:
        """Call `punctuator` with the time each time `interval` of `clock` has passed.

        In `init`, `interval` may also be `Times`, an object with a method `next_after`: those of a cron expression, by
        `penstock.contrib.cron`, or of a calendar of your own. A task that was away calls the punctuator once when it is
        back. Other times in a new program are valid at once; what was due before it began is called.

        Firing times are aligned to `start` (ms since the epoch; default 0 for stream time, now for the wall clock). A
        clock that is late fires once, not once for each interval missed. A punctuator that schedules itself again is
        not called again at the same time. Semantics: KIP-138 and KIP-1146.

        Schedules are saved with each commit, and a task that is opened again continues with them. It finds the callback
        by `name`, or by the name of the processor's method. So outside `init`, schedule a method of the processor, or
        give a name under which `init` has scheduled a callback; that callback is called. In `init` any function may be
        scheduled. Several schedules of the same method, or without one, are identified by their order.

        A `name` identifies one schedule of the node: scheduling it again replaces it. Without a name, each call makes
        another schedule, with one exception: if a schedule of `init` was cancelled, the next call with the same method
        makes it again, and `init`'s handle is valid for it.

        When a re-opened task calls `init`, each schedule that `init` makes gets the state in which it was saved: a
        cancelled one stays cancelled.

        Raises ConfigError for a wrong value, for a callback that could not be found again, and when the task has more
        schedules than a commit has room for: about 40 that were made outside `init`.
        """
        ...

    def commit(self) -> None:
        """Ask for a commit soon, after the current record."""
        ...


class ProcessorContext(ValueTransformerContext, Protocol):
    """The context of a Processor."""

    def forward(self, record: Record, to: str | None = None) -> None:
        """Hand `record` to all children in the order they were added, or to the child named `to`.

        Depth first: returns when everything below has processed it. Each child gets a key and a value of its own, if
        these can be changed, so neither sees what the other does to them; an object that `copy.deepcopy` cannot copy
        is shared. Raises TopologyError when there is no such child.
        """
        ...

    @property
    def saved_numbers(self) -> dict[str, int]:
        """Numbers by name that an Operator saves with each commit; change them in place. See `Processor.saved_with`."""
        ...

    def schedule_when_settled(self, interval: Duration, punctuator: Punctuator, name: str) -> None:
        """Schedule by the wall clock, but call `punctuator` only when everything in front of the task has been read.

        The argument of the call is the time as of which that is so. In front are the records that the task's inputs had
        then, and the records that upstream tasks made of theirs for repartition topics. Operators for which silence has
        a meaning use this: records that wait must count before a timeout does.
        """
        ...

    def offsets_read_in_front(self) -> int:
        """Return the number of offsets that upstream tasks had read at the last call by `schedule_when_settled`.

        A changed number means that upstream tasks have read more since. 0 without upstream tasks.
        """
        ...

    def held_back_in_front_at(self) -> int:
        """Return when a node in front of this one in its task, which may hold back results, last got a record.

        About, by the wall clock (ms); -1 if none has. See `Operator.holds_back`.
        """
        ...

    @property
    def waiting_windows(self) -> WaitingWindows:
        """The windows of which updates wait in the task's record caches.

        An Operator that closes windows calls its `flush` before, where joins read them.
        """
        ...

    def guarded(self, run: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return `run` for records that this node has held back and releases while it processes another record.

        If `run` fails, `processing_handler` decides about the held record. If that record is dropped, the current one
        continues.
        """
        ...

    def batched(
        self,
        compute: Callable[[Sequence[Any]], Sequence[Any]],
        emit: Callable[[Any, Any], None],
        max_records: int,
        max_wait: Duration,
    ) -> Callable[[Any], None]:
        """Return a function for `Operator.bind` that holds records, and works on many at once.

        When it holds `max_records`, or the first one has waited for `max_wait` of the wall clock, `compute` gets them
        in the order of their arrival and returns a result for each. Then `emit` is called with each record and its
        result, and may forward and use stores: its context is that of the record, and the stream time that of the
        record's arrival. A commit lets all records go first, so none is lost, and none has to be saved.

        `compute` has no context, and no effects of its own: where it raises an error, it is called again with each half
        of the records, until those at fault are alone; `processing_handler` decides about them.
        """
        ...

    def in_flight(
        self,
        call: Callable[[Any], Callable[[], Any]],
        emit: Callable[[Any, Any], None],
        key_bytes: Callable[[Any], bytes],
        store: str,
        options: InFlightOptions,
    ) -> Callable[[Any], None]:
        """Return a function for `Operator.bind` that takes records whose results come later: they are state.

        For each record `call` returns a function, which is called beside the task (see `penstock.world.Calls`). When it
        has returned, `emit` is called with the record and the result, and may forward and use stores: its context is
        that of the record. A record without a result at a commit is kept in `store`, a key-value store of (arrival
        number, key) and `PendingRecord`; a re-opened task calls for it again. `key_bytes` returns the bytes of a
        record's key, and raises an error for a record that the store would refuse.

        `processing_handler` decides about a call that raises an error or does not return in time: for Retry() it is
        called again after the delay, while others go on.
        """
        ...

    def in_calls(self, processor: Any) -> Callable[[Any], None]:
        """Return a function that takes the records of an `AsyncProcessor`, which see."""
        ...

    def in_batches(
        self, process_batch: Callable[[Sequence[Record]], None], max_records: int, max_wait: Duration
    ) -> Callable[[Any], None]:
        """Return a function that holds records, and calls `process_batch` with many; see `BatchProcessor`."""
        ...

    def send(self, record: Any, to: str | None = None) -> None:
        """Forward a record that may be a plain tuple of key, value, timestamp and headers, as operators make them.

        An Operator hands the value over, to save a copy: after that it does not use it, or send it again.
        """
        ...

    def timer(self, key: Any, at: int, clock: PunctuationType) -> None:
        """Have the processor's `on_timer(key, at)` called once, when `clock` has reached `at` (ms since the epoch).

        A key has one timer on each clock: setting it again replaces it. Timers are kept in a store, so they survive
        whatever a store does, and there may be millions. They fire where punctuators do, after those: on stream time
        after the record that moved it, in the order of time and then of the keys' bytes. A timer for the present time,
        or one in the past, fires at the next such moment. Inside `on_timer`, the time must be later than the `at` that
        it was called with; a timer that is already due fires in the same round.

        Raises ConfigError for a time that is none, and TopologyError if the node has no timers.
        """
        ...

    def cancel_timer(self, key: Any, clock: PunctuationType) -> None:
        """Remove the timer of `key` on `clock`, if there is one."""
        ...

    def timers(self, clock: PunctuationType) -> Entries[Any, int]:
        """Iterate over (key, at) of this node's timers on `clock` in this task, the earliest first."""
        ...

    def set_flush_listener(self, store: str, listener: FlushListener) -> None:
        """Have `listener` called with the updates of a store that was declared with `cached=True`; call it in `init`.

        It gets a Record: the key (Windowed for window and session stores), `Change(new, old)` as its value, and
        timestamp and headers of the record that wrote the key last; if values have timestamps, the value's. It may
        forward. It is called when the task commits, and earlier when the task's share of `statestore_cache_max_bytes`
        is used up, once for each key, in the order in which the keys were last put. With a size of 0, it is called for
        each update at once. Raises TopologyError for a store without a cache, and one with another node's listener.
        Semantics: Kafka Streams' record cache and CacheFlushListener.
        """
        ...
