"""Timers: sets the timers that processors ask for, and calls `on_timer` when their time has come."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..clock import PunctuationType
from ..errors import ConfigError, TopologyError
from ..program.messages import OF_TOPOLOGY
from ..store import Entries, StateStore
from ..store.kinds.timers import TimerStore
from ..support.callbacks import check_result
from ..support.names import timer_store_name
from .schedules import NEVER

if TYPE_CHECKING:
    from .in_flight import InFlight


class _Node(NamedTuple):
    store: TimerStore
    on_timer: Callable[[Any, int], None]


class Timers:
    """The timers of one task's nodes.

    `failed` is called with the node and the error when `on_timer` raises. `stream_due` is the stream time (ms) at which
    `fire` has to be called; `sooner` is called when it has become an earlier one. `is_over` returns whether the driver
    has no more time. `begins` is called before a timer fires with which one it is, and with None after it.
    """

    def __init__(
        self,
        failed: Callable[[str, Exception | SystemExit], None],
        sooner: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
        begins: Callable[[Hashable], None] = lambda timer: None,
        in_flight: InFlight | None = None,
    ) -> None:
        self._failed = failed
        self._sooner = sooner
        self._is_over = is_over
        self._begins = begins
        self._in_flight = in_flight
        self._nodes: dict[str, _Node] = {}
        self._advice: dict[str, str] = {}
        self._firing: tuple[PunctuationType, int] | None = None
        self.let_go: Callable[[str], bool] = lambda node: False
        """Lets records go that wait in batches in front of a node; returns whether there were any."""
        self.stream_due = NEVER

    def add(
        self,
        node: str,
        stores: Mapping[str, StateStore],
        on_timer: Callable[[Any, int], None],
        advice: str = OF_TOPOLOGY.timers,
    ) -> None:
        """Add the timers of a node, if `stores` has a store for them. `advice`: see `Advice.timers`."""
        self._advice[node] = advice
        store = stores.get(timer_store_name(node))
        if isinstance(store, TimerStore):
            self._nodes[node] = _Node(store, on_timer)
            self.stream_due = self.next_due(PunctuationType.STREAM_TIME)

    # ------------------------------------------------------------------ what processors ask for

    def set(self, node: str, key: Any, at: int, clock: PunctuationType) -> None:
        """Set a timer of a node. Raises ConfigError for a wrong time, TopologyError if it has no timers."""
        store = self._of(node, clock).store
        if type(at) is not int or not 0 <= at < NEVER:
            raise ConfigError(f"node {node!r}: a timer's time is in ms since the epoch, found {at!r}")
        if self._firing is not None and self._firing[0] is clock and at <= self._firing[1]:
            raise ConfigError(
                f"node {node!r}: on_timer was called for {self._firing[1]} and sets a timer of key {key!r} for "
                f"{at}, which could go on for ever: set it for a later time"
            )
        store.set(key, at, clock)
        if clock is PunctuationType.STREAM_TIME and at < self.stream_due:
            self.stream_due = at
            self._sooner()

    def cancel(self, node: str, key: Any, clock: PunctuationType) -> None:
        """Remove a timer of a node."""
        self._of(node, clock).store.cancel(key, clock)

    def entries(self, node: str, clock: PunctuationType) -> Entries[Any, int]:
        """Iterate over (key, time) of a node's timers."""
        return self._of(node, clock).store.entries(clock)

    def _of(self, node: str, clock: PunctuationType) -> _Node:
        if not isinstance(clock, PunctuationType):
            raise ConfigError(f"node {node!r}: clock must be STREAM_TIME or WALL_CLOCK_TIME, found {clock!r}")
        try:
            return self._nodes[node]
        except KeyError:
            raise TopologyError(
                f"node {node!r} has no timers: override on_timer in its processor's class, and where a function makes "
                f"the processor {self._advice[node].format(node=repr(node))}"
            ) from None

    # ------------------------------------------------------------------ what is due

    def __bool__(self) -> bool:
        """Return whether a node has timers."""
        return bool(self._nodes)

    def next_due(self, clock: PunctuationType) -> int:
        """Return when the next timer of a clock is due (ms), or a little earlier; NEVER if there is none."""
        due = (node.store.next_due(clock) for node in self._nodes.values())
        return min((each for each in due if each is not None), default=NEVER)

    def _call(self, name: str, node: _Node, key: Any, at: int) -> None:
        in_flight = self._in_flight
        stream_time = -1 if in_flight is None else in_flight.show_time(name)
        try:
            check_result(node.on_timer(key, at), "on_timer")
        finally:
            if in_flight is not None:
                in_flight.end_showing(stream_time)

    def next_stream_due(self) -> int:
        """Return the stream time (ms) at which `fire` has to be called; it may be over."""
        return min(
            (due for name, node in self._nodes.items() if (due := self._stream_due_of(name, node)) is not None),
            default=NEVER,
        )

    def _stream_due_of(self, name: str, node: _Node) -> int | None:
        due = node.store.next_due(PunctuationType.STREAM_TIME)
        return None if due is not None and due > self._time_of(name, due) else due

    def _time_of(self, name: str, now: int) -> int:
        """Return the stream time that a node may know at `now` (ms)."""
        in_flight = self._in_flight
        return now if in_flight is None or name not in in_flight.behind else min(now, in_flight.time)

    def nodes(self, clock: PunctuationType) -> list[str]:
        """Return the nodes that have a timer of a clock."""
        return [name for name, node in self._nodes.items() if node.store.next_due(clock) is not None]

    def fire(self, clock: PunctuationType, now: int) -> bool:
        """Call `on_timer` for every timer that is due at `now` (ms); return whether any was.

        In the order of time, then of the keys' bytes, then of the nodes; timers that a call sets take part. It ends
        early where the driver has no more time after a call.
        """
        fired, is_stream_time = False, clock is PunctuationType.STREAM_TIME
        while not (fired and self._is_over()):
            due = [
                (*first, name)
                for name, node in self._nodes.items()
                if (first := node.store.first_due(clock, self._time_of(name, now) if is_stream_time else now))
            ]
            if not due:
                break
            _, raw_key, name = due[0] if len(due) == 1 else min(due, key=lambda each: each[:2])
            if self.let_go(name):
                continue  # they may have set it to another time
            fired = True
            node = self._nodes[name]
            key, at = node.store.take(clock)
            self._firing = clock, at
            self._begins((name, clock, raw_key))
            try:
                self._call(name, node, key, at)
            except (Exception, SystemExit) as error:
                self._failed(name, error)
            finally:
                self._begins(None)
                self._firing = None
        if is_stream_time:
            self.stream_due = self.next_stream_due()
        return fired
