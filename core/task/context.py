"""The contexts that a task hands to its processors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..clock import Cancellable, Duration, PunctuationType, Punctuator, Times, duration_ms
from ..errors import StoreError, TopologyError
from ..processor import AsyncProcessor, InFlightOptions, NodeMetrics
from ..program.nodes import ProcessorNode, Subtopology
from ..record import Record, RecordMetadata
from ..settings.secret import SettingsByName
from ..settings.settings import Settings
from ..store import Entries, StateStore
from ..store.record_cache import FlushListener, Forwarding, WaitingWindows
from ..support.callbacks import check_plain, watched
from .batches import Batches, ComputingNode
from .failures import RECORD_ERRORS
from .in_flight import InFlight
from .progress import TaskProgress
from .saved_values import SavedValues
from .schedule import Schedule
from .timers import Timers

Schedules = Callable[[str, Duration | Times, Punctuator, PunctuationType, int | None, str | None], Schedule]
"""(node, interval, punctuator, clock, start, name) -> the schedule that a node asked for."""

_HELD_BACK = "held_back"
"""The number that is the time of `held_back_in_front_at`."""


@dataclass(frozen=True)
class Shared:
    """Parts of all contexts of one task. `takes_commit_requests`: whether a processor's `commit` has an effect.

    `values` are the numbers that operators save with each commit. `failed_late` asks the handler about an exception
    that a node raised for a record that had waited. `batches` has the held records, and `in_flight` those whose results
    come later.
    """

    application_id: str
    task_id: str
    settings: Settings
    stores: Mapping[str, StateStore]
    global_stores: Mapping[str, ReadOnlyView]
    read_only_stores: Mapping[str, ReadOnlyView]
    progress: TaskProgress
    schedule: Schedules
    takes_commit_requests: bool
    timers: Timers
    values: SavedValues
    failed_late: Callable[[str, object, int, Exception | SystemExit], None]
    batches: Batches
    in_flight: InFlight


class TransformerContext:
    """The context of a ValueTransformer: everything but forwarding."""

    def __init__(self, shared: Shared, node: ProcessorNode, metrics: NodeMetrics) -> None:
        self._shared = shared
        self._progress = shared.progress
        self._node = node
        self.application_id = shared.application_id
        self.task_id = shared.task_id
        self.node = node.name
        self.metrics = metrics

    @property
    def config(self) -> Mapping[str, Any]:
        """The application's settings."""
        settings = self._shared.settings
        return SettingsByName(settings.by_name, settings.marked)

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Where the current record was read; None in a punctuator and in `init`."""
        return self._progress.record_metadata()

    def get_store(self, name: str) -> Any:
        """Return a connected store, or a global one to read."""
        stores, global_stores = self._shared.stores, self._shared.global_stores
        if name in self._node.stores:
            view = self._shared.read_only_stores.get(name)
            return stores[name] if view is None or view.filler == self.node else view
        if name in global_stores:
            return global_stores[name]
        advice = self._node.advice
        if name in stores:
            raise TopologyError(
                f"node {self.node!r} is not connected to store {name!r}; "
                + advice.connect.format(node=repr(self.node), store=repr(name))
            )
        known = [*self._node.stores, *global_stores]
        raise TopologyError(
            f"node {self.node!r} asks for store {name!r}, which it is not connected to; connected: "
            f"{', '.join(known) or 'none'}. {advice.declare_for.format(node=repr(self.node), store=repr(name))}"
        )

    def current_stream_time_ms(self) -> int:
        """Return the highest timestamp processed by the task."""
        return self._progress.stream_time

    def current_system_time_ms(self) -> int:
        """Return the driver's wall clock."""
        return self._progress.wall_clock

    def schedule(
        self,
        interval: Duration | Times,
        punctuator: Punctuator,
        clock: PunctuationType,
        *,
        start: int | None = None,
        name: str | None = None,
    ) -> Cancellable:
        """Call `punctuator` each time `interval` has passed, or at its times."""
        return self._shared.schedule(self.node, interval, punctuator, clock, start, name)

    def commit(self) -> None:
        """Ask for a commit after the current record."""
        if self._shared.takes_commit_requests:
            self._progress.request_commit()


class NodeContext(TransformerContext):
    """The context of a Processor. `forward` and `send` are the functions that the task compiled for this node."""

    def __init__(
        self,
        shared: Shared,
        node: ProcessorNode,
        metrics: NodeMetrics,
        forward: Callable[..., None],
        send: Callable[..., None],
    ) -> None:
        super().__init__(shared, node, metrics)
        self.forward = forward
        self.send = send
        self.saved_numbers = shared.values.of(node.name)
        self.count_held_back: Callable[[], int] = lambda: 0
        """Returns how many records the nodes in front that hold back results have got; the task sets it."""
        self._held_back, self.waits_for_silence = 0, False

    def timer(self, key: Any, at: int, clock: PunctuationType) -> None:
        """Have `on_timer` called for `key` when `clock` reaches `at`."""
        self._shared.timers.set(self.node, key, at, clock)

    def cancel_timer(self, key: Any, clock: PunctuationType) -> None:
        """Remove the timer of `key` on `clock`."""
        self._shared.timers.cancel(self.node, key, clock)

    def timers(self, clock: PunctuationType) -> Entries[Any, int]:
        """Iterate over (key, at) of this node's timers."""
        return self._shared.timers.entries(self.node, clock)

    def schedule_when_settled(self, interval: Duration, punctuator: Punctuator, name: str) -> None:
        """Schedule by the wall clock as of which everything in front of the task has been read."""
        made = self._shared.schedule(self.node, interval, punctuator, PunctuationType.WALL_CLOCK_TIME, None, name)
        made.waits = self.waits_for_silence = True

    def offsets_read_in_front(self) -> int:
        """Return the number of offsets that upstream tasks have read."""
        return self._progress.front.read

    def held_back_in_front_at(self) -> int:
        """Return when a node in front that may hold back results last got a record."""
        self.note_held_back()
        return self.saved_numbers.get(_HELD_BACK, -1)

    @property
    def waiting_windows(self) -> WaitingWindows:
        """The windows of which updates wait in the task's record caches; the same for all of its nodes."""
        caches = (store.record_cache for store in self._shared.stores.values())
        return next((each.windows for each in caches if each is not None), WaitingWindows())

    def note_held_back(self) -> None:
        """Save the time of the records that were counted since the last call."""
        if (count := self.count_held_back()) != self._held_back:
            self._held_back, self.saved_numbers[_HELD_BACK] = count, self._progress.read_at

    def guarded(self, run: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return `run` for held-back records: if it fails, only the held record is dropped."""
        failed, node = self._shared.failed_late, self.node

        def guarded(record: Any) -> None:
            try:
                run(record)
            except RECORD_ERRORS as error:
                failed(node, record[0], record[2], error)

        return guarded

    def batched(
        self,
        compute: Callable[[Sequence[Any]], Sequence[Any]],
        emit: Callable[[Any, Any], None],
        max_records: int,
        max_wait: Duration,
    ) -> Callable[[Any], None]:
        """Return a function that holds records until there are enough of them, or one has waited long enough."""
        batches, wait_ms = self._shared.batches, duration_ms(max_wait, "max_wait")
        return batches.add(ComputingNode(batches, self.node, compute, emit, max_records, wait_ms))

    def in_batches(
        self, process_batch: Callable[[Sequence[Record]], None], max_records: int, max_wait: Duration
    ) -> Callable[[Any], None]:
        """Raise TopologyError: only the context of a BatchProcessor has batches for it."""
        raise TopologyError(f"node {self.node!r}: in_batches is for a BatchProcessor: derive its class from that")

    def in_calls(self, processor: AsyncProcessor) -> Callable[[Any], None]:
        """Raise TopologyError: only the context of an AsyncProcessor has calls for it."""
        raise TopologyError(f"node {self.node!r}: in_calls is for an AsyncProcessor: derive its class from that")

    def in_flight(
        self,
        call: Callable[[Any], Callable[[], Any]],
        emit: Callable[[Any, Any], None],
        key_bytes: Callable[[Any], bytes],
        store: str,
        options: InFlightOptions,
    ) -> Callable[[Any], None]:
        """Return a function that takes records whose results come later."""
        return self._shared.in_flight.add(self.node, call, emit, key_bytes, store, options, self.saved_numbers)

    def set_flush_listener(self, store: str, listener: FlushListener) -> None:
        """Have `listener` called with the updates of a cached store."""
        check_plain(f"node {self.node!r}", "the flush listener", listener)
        cache = self.get_store(store).record_cache
        if cache is None:
            raise TopologyError(
                f"node {self.node!r} sets a flush listener for store {store!r}, which has no record cache: declare the "
                "store with cached=True"
            )
        if cache.node not in (None, self.node):
            raise TopologyError(
                f"node {self.node!r} sets a flush listener for store {store!r}, which has that of node {cache.node!r}: "
                "a store has one listener"
            )
        cache.listen(self.node, watched(listener))


_ENGINE_ONLY = frozenset({"flush", "discard", "close", "reading_half"})
"""Only the engine uses these."""


class ReadOnlyView:
    """A store that can be read but not written, by the reading half of its kind.

    It is what a task sees of a global store, and all processors but `filler` of a read-only store.
    """

    def __init__(self, store: StateStore, filler: str | None = None) -> None:
        self._store = store
        self.name = store.name
        self.filler = filler

    @property
    def forwarding(self) -> Forwarding | None:
        """The store's own: a processor that only reads may ask the filler for it."""
        return self._store.forwarding

    @forwarding.setter
    def forwarding(self, forwarding: Forwarding) -> None:
        self._store.forwarding = forwarding

    def __getattr__(self, name: str) -> Any:
        store = self._store
        found, half = getattr(store, name), store.reading_half
        kind = "global" if self.filler is None else "read-only"
        only = f"store {store.name!r} is a {kind} store: only its own processor may write it"
        if half is None:
            raise StoreError(
                f"{only}, and its class {type(store).__name__} does not say which methods read: give it a base class "
                "of these methods, declared with `(StateStore, reads_only=True)`"
            )
        if hasattr(half, name) and name not in _ENGINE_ONLY:
            return found
        reads = [
            each for each in dir(half) if each[0] != "_" and each not in _ENGINE_ONLY and callable(getattr(half, each))
        ]
        raise StoreError(f"{only}, so {name!r} cannot be used here. To read it, there is {', '.join(reads)}")


def read_only_views(subtopology: Subtopology, stores: Mapping[str, StateStore]) -> dict[str, ReadOnlyView]:
    """Return the read-only stores of a task, as processors see them."""
    return {
        each.store.name: ReadOnlyView(stores[each.store.name], each.processor.name)
        for each in subtopology.read_only_stores
    }
