"""InFlight: the records that nodes have taken and not answered yet, which are state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import count, islice
from typing import Any

from ..errors import ProcessingError
from ..processor import InFlightOptions, PendingRecord
from ..record import Record
from ..store import StateStore
from ..store.record_cache import SourceRecord
from ..support.callbacks import check_answer
from ..world.calls import Calls, CallTimeout
from .failures import RECORD_ERRORS, Failures, RetryRequested
from .progress import TaskProgress
from .schedules import NEVER

_PASSED = ".passed"
"""The name of the number with which a node's `_passed` is saved."""
_HOLD_MS = 60_000
"""For how long calls without any result keep up what waits for silence."""
_LOOK_MS = 1
"""Milliseconds until a driver that does not wait for answers looks again while calls are under way."""
_GATHER_MS = 4
"""Milliseconds for which answers are gathered where no call waits for them: a turn of the task costs more than they do.
"""


_BEGUN_AFTER = 8
"""Results after which calls are begun: those that were submitted ahead go on meanwhile."""
_DONE, _FAILED, _LATE, _SECONDS = range(4)


class _Row:
    """A record in flight. `result` is set once the call has returned, and then waits for its turn.

    `is_dropped`: in place of a result, the handler of its failure has dropped it; its `attempt` is then 0.
    """

    __slots__ = (
        "arrived", "attempt", "due", "future", "is_answered", "is_dropped", "is_stored", "key", "number", "place",
        "record", "result", "source", "stream_time",
    )  # fmt: skip

    def __init__(
        self, number: int, key: bytes, record: Any, stream_time: int, source: SourceRecord | None, attempt: int = 1
    ) -> None:
        self.number, self.key, self.record = number, key, record
        self.place = self.arrived = 0
        self.stream_time, self.source, self.attempt = stream_time, source, attempt
        self.is_stored = self.is_answered = self.is_dropped = False
        self.future: Future[Any] | None = None
        self.result: Any = None
        self.due = 0


class InFlight:
    """The records in flight of one task.

    A node hands each record to a function of its own that may wait (see `Calls`), and the task goes on. What is not
    answered at a commit becomes a row of the node's store with that commit, so answers never hold a commit up. A
    re-opened task makes the calls of its rows again. So a call may be repeated, and its effect in the task is not: the
    record leaves the store in the commit that has what was made of its result.

    A result is handed on between two records, with the timestamp, the headers and the source of its record, and at the
    stream time of its arrival. Where a node behind may depend on time (`Operator.reads_time`), results are handed on in
    the order of arrival, whatever the order of the calls. Nodes behind see no later stream time than that of the last
    record that was handed on, while there are others.
    """

    def __init__(
        self, progress: TaskProgress, failures: Failures, calls: Calls, stores: Mapping[str, StateStore]
    ) -> None:
        self._progress = progress
        self._failures = failures
        self._calls = calls
        self._stores = stores
        self._nodes: list[_Node] = []
        self._in_order = set[str]()
        self._waited_ms = 0
        self.behind: Collection[str] = ()
        """Nodes that results reach."""
        self.fire_due: Callable[[], None] = lambda: None
        """Calls what these nodes have scheduled by a stream time that they know now."""

    def add(
        self,
        node: str,
        call: Callable[[Any], Callable[[], Any]],
        emit: Callable[[Any, Any], None],
        key_bytes: Callable[[Any], bytes],
        store: str,
        options: InFlightOptions,
        numbers: dict[str, int],
        *,
        has_context: bool = False,
    ) -> Callable[[Any], None]:
        """Return the function that gets each record of a node; see `ProcessorContext.in_flight`.

        `numbers` are those that the task saves for the node. `has_context`: `call` is the user's, and reads the
        context, which is that of the record.
        """
        self._progress.keeps_sources = True  # record caches in front, too
        made = _Node(
            node, call, emit, key_bytes, self._stores[store], options, self._progress, self._failures, self._calls,
            self._now, lambda: self.fire_due(), numbers,
            in_order=options.order == "partition" or node in self._in_order, has_context=has_context,
        )  # fmt: skip
        self._nodes.append(made)
        return made.take

    def keep_order(self, node: str) -> None:
        """Hand on the results of a node, which is added later, in the order of arrival: one behind it reads time."""
        self._in_order.add(node)

    def restore(self) -> None:
        """Take the rows of the last commit, before any other record."""
        for node in self._nodes:
            node.restore()
        self._note_passed()

    # ------------------------------------------------------------------ what the task asks

    @property
    def is_used(self) -> bool:
        """Whether a node takes records and answers later."""
        return bool(self._nodes)

    @property
    def is_full(self) -> bool:
        """Whether a node holds so many records that the task takes no more."""
        return any(node.is_full for node in self._nodes)

    @property
    def time(self) -> int:
        """The stream time that nodes behind may know (ms), NEVER if no record is in flight."""
        return min((node.time for node in self._nodes), default=NEVER)

    def since(self) -> int | None:
        """Return when the first record in flight came, by the task's wall clock (ms): 0 if before the task was opened.

        None if there is none.
        """
        return min((row.arrived for node in self._nodes for row in node.first_rows()), default=None)

    def holds(self, node: str) -> bool:
        """Whether records in flight may reach a node, and the last result is not long ago: this is no silence."""
        if node not in self.behind or self.time == NEVER:
            return False
        last = max(each.last_result for each in self._nodes)
        return self._progress.wall_clock < max(last, self._progress.opened_at) + _HOLD_MS

    def show_time(self, node: str) -> int:
        """Show the stream time that a node may know; return the task's, for `end_showing`."""
        progress = self._progress
        before = progress.stream_time
        if node in self.behind:
            progress.stream_time = min(before, self.time)
        return before

    def end_showing(self, stream_time: int) -> None:
        """Show the task's stream time again."""
        self._progress.stream_time = stream_time

    def next_due(self) -> int:
        """Return when there is something to do as far as known, by the task's wall clock (ms).

        0 for at once, NEVER for nothing. An answer may come before.
        """
        return min((node.next_due() for node in self._nodes), default=NEVER)

    def next_look(self) -> int:
        """Return `next_due` for a driver that is not awake when answers come: soon, while calls are under way."""
        look = self._progress.wall_clock + _LOOK_MS if self.calls_under_way else NEVER
        return min(look, self.next_due())

    @property
    def calls_under_way(self) -> int:
        """The number of calls whose answers may come at any time, or were not taken."""
        return sum(node.calls_under_way for node in self._nodes)

    @property
    def answers(self) -> int:
        """The number of answers that have come and were not taken."""
        return sum(node.answers for node in self._nodes)

    def count(self) -> int:
        """Return the number of records in flight."""
        return sum(node.pending for node in self._nodes)

    def take_counts(self) -> dict[str, list[float]]:
        """Return numbers of calls since the last call of this, by node: see `TaskReport.calls`."""
        return {node.name: counts for node in self._nodes if any(counts := node.take_counts())}

    def under_way(self) -> list[Future[Any]]:
        """Begin calls that may begin; return those whose results were not taken."""
        for node in self._nodes:
            node.begin()
        return [future for node in self._nodes for future in node.under_way()]

    def next_retry(self) -> int:
        """Return when the first retry is due by the task's wall clock (ms); NEVER if there is none."""
        return min((node.next_retry for node in self._nodes), default=NEVER)

    def places(self) -> set[tuple[str, int, int]]:
        """Return topic, partition and offset of the source records in flight."""
        return {row.source[:3] for node in self._nodes for row in node.rows if row.source is not None}

    def _now(self) -> int:
        return self._progress.wall_clock + self._waited_ms

    def settle(self, waited_ms: int = 0) -> bool:
        """Hand on the results that have come, and begin calls; return whether there was a result.

        `waited_ms`: for how long the driver has waited since the task's wall clock moved, which counts for retries.
        """
        settled, self._waited_ms = False, waited_ms
        while sum(node.settle() for node in self._nodes):  # a result may be a record of another node
            settled = True
        if settled:
            self._progress.has_changed = True
            self._progress.read_at = self._progress.wall_clock
        return settled

    def write_rows(self) -> None:
        """Put the records in flight into the stores, before a commit."""
        for node in self._nodes:
            node.write_rows()
        self._note_passed()

    def _note_passed(self) -> None:
        progress = self._progress
        progress.time_of_all = min(progress.stream_time, self.time)
        is_saved = any(node.pending for node in self._nodes)
        for node in self._nodes:
            node.note_passed(progress.time_of_all, is_saved=is_saved)

    def close(self) -> None:
        """Take no more results, and cancel the calls."""
        for node in self._nodes:
            node.close()


class _Node:
    """The records in flight of one node."""

    def __init__(
        self,
        name: str,
        call: Callable[[Any], Callable[[], Any]],
        emit: Callable[[Any, Any], None],
        key_bytes: Callable[[Any], bytes],
        store: Any,
        options: InFlightOptions,
        progress: TaskProgress,
        failures: Failures,
        calls: Calls,
        now: Callable[[], int],
        handed_on: Callable[[], None],
        numbers: dict[str, int],
        *,
        in_order: bool,
        has_context: bool,
    ) -> None:
        self.name = name
        self._call = call
        self._emit = emit
        self._key_bytes = key_bytes
        self._store = store
        self._options = options
        self._progress = progress
        self._failures = failures
        self._calls = calls
        self._limit = calls.limit(options.capacity)
        self._now = now
        self._handed_on = handed_on
        self._numbers = numbers
        self._in_order = in_order
        self._has_context = has_context
        self._rows: dict[int, _Row] = {}  # by place, in its order
        self._places = count()
        self._changed: dict[int, _Row] = {}  # that the store does not have as they are
        self._next = 1
        self._ready: deque[_Row] = deque()  # may be called for
        self._keys: dict[bytes, deque[_Row]] = {}  # by key that is called for: those that come after it
        self._held_back = 0  # the number of those
        self._delayed: dict[int, _Row] = {}  # are called for again later
        self._under_way: dict[int, _Row] = {}
        self._answered: deque[_Row] = deque()  # other threads append to it
        self._passed = numbers.get(_PASSED, -1)
        self._is_closed = False
        self._settled_at = -1
        self._counts: list[float] = [0, 0, 0, 0.0]
        self.last_result = -1
        """When the last record left, or the first one came after that, by the task's wall clock (ms)."""

    # ------------------------------------------------------------------ records

    def take(self, record: Any) -> None:
        """Take a record from the node in front."""
        progress = self._progress
        key = self._key_bytes(record)
        row = _Row(self._next, key, record, progress.stream_time, progress.source())
        self._next += 1
        row.arrived = progress.wall_clock
        if not self._rows:
            self.last_result = progress.wall_clock
        self._add(row)
        self._changed[row.place] = row
        if self._ready:
            self.begin()
        if self.is_full:
            progress.needs_attention = True

    def restore(self) -> None:
        with self._store.all() as entries:
            for (number, key), saved in entries:
                record = Record(key, saved.value, saved.timestamp, saved.headers)
                row = _Row(number, self._key_bytes(record), record, saved.stream_time, saved.source, saved.attempt)
                row.is_stored = True
                row.is_dropped = row.is_answered = row.attempt == 0
                self._add(row)
                self._next = number + 1

    def _add(self, row: _Row) -> None:
        row.place = next(self._places)  # after a reshard, rows of two keys may have one number
        self._rows[row.place] = row
        if self._options.order == "key" and (self._has_context or not row.is_dropped):
            if row.key in self._keys:
                self._keys[row.key].append(row)
                self._held_back += 1
                return
            self._keys[row.key] = deque()
        if not row.is_dropped:
            self._ready.append(row)

    def first_rows(self) -> Iterator[_Row]:
        """Return the row that came first, if there is one."""
        return islice(self._rows.values(), 1)

    @property
    def rows(self) -> Iterator[_Row]:
        return iter(self._rows.values())

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= self._options.max_pending

    @property
    def time(self) -> int:
        return self._passed if self._rows else NEVER

    def note_passed(self, time: int, *, is_saved: bool) -> None:
        """Save the stream time of the last record that left, while any node has records in flight.

        Without records in flight here, all up to `time` have left.
        """
        if not self._rows:
            self._passed = max(self._passed, time)
        if is_saved:
            self._numbers[_PASSED] = self._passed
        else:
            self._numbers.pop(_PASSED, None)

    @property
    def next_retry(self) -> int:
        return min((row.due for row in self._delayed.values()), default=NEVER)

    def next_due(self) -> int:
        if self._is_first_answered or (self._ready and len(self._under_way) < self._limit.most_submitted):
            return 0
        if self._answered:
            # Records that wait for an answer: those that find no room, and those of a key that is called for.
            has_room = len(self._under_way) - len(self._answered) < self._options.capacity
            is_awaited = has_room and (self._ready or self._held_back)
            due = 0 if is_awaited or self._calls.are_held else self._settled_at + _GATHER_MS
            return min(due, self.next_retry)
        return self.next_retry

    @property
    def calls_under_way(self) -> int:
        return len(self._under_way)

    @property
    def pending(self) -> int:
        return len(self._rows)

    def take_counts(self) -> list[float]:
        taken, self._counts = self._counts, [0, 0, 0, 0.0]
        return taken

    @property
    def answers(self) -> int:
        return len(self._answered)

    def under_way(self) -> list[Future[Any]]:
        return [row.future for row in self._under_way.values() if row.future is not None]

    # ------------------------------------------------------------------ calls

    def begin(self) -> None:
        """Begin as many calls as there may be at once."""
        ready, under_way, options, limit = self._ready, self._under_way, self._options, self._limit
        while ready and len(under_way) < limit.most_submitted:
            row = ready.popleft()
            under_way[row.place] = row
            function = self._asked(row) if self._has_context else self._call(row.record)
            row.future = self._calls.submit(function, options.timeout_ms / 1000, is_async=options.is_async, limit=limit)
            row.future.add_done_callback(partial(self._note_answer, row))

    def _asked(self, row: _Row) -> Callable[[], Any]:
        """Return the function of a user's `call`; one that raises its error if it failed."""
        try:
            with _As(self._progress, self.name, row, self._passed):
                return self._call(row.record)
        except RECORD_ERRORS as error:
            return partial(_raise, error)

    def _note_answer(self, row: _Row, _: object) -> None:
        """Note that a call has returned; any thread calls it."""
        if not self._is_closed:
            self._answered.append(row)
            self._progress.needs_attention = True

    def settle(self) -> int:
        """Take results, hand on those whose turn it is, and begin calls; return how many results there were."""
        if self._delayed and self.next_retry <= self._now():
            self._end_delays()
        taken, answered = 0, self._answered
        if answered:
            self._settled_at = self._progress.wall_clock
        self.begin()
        self._let_go_first()  # one that was dropped, after the task of those before it has become another one
        while answered:
            taken += 1
            self._take_result(answered.popleft())
            if not taken % _BEGUN_AFTER:
                self.begin()
        self.begin()
        return taken

    def _end_delays(self) -> None:
        now = self._now()
        for row in sorted((row for row in self._delayed.values() if row.due <= now), key=lambda row: row.due):
            del self._delayed[row.place]
            self._ready.append(row)

    def _take_result(self, row: _Row) -> None:
        del self._under_way[row.place]
        future, row.future = row.future, None
        assert future is not None
        result, error = _outcome_of(future)
        is_late = isinstance(error, CallTimeout)
        self._counts[_LATE if is_late else _DONE if error is None else _FAILED] += 1
        self._counts[_SECONDS] += getattr(future, "seconds", 0.0)
        if error is not None and not self._is_dropped(row, error):
            return
        if error is None:
            row.result = result
        else:  # its call is not to be made again, but until its turn it keeps its place in time
            row.is_dropped, row.attempt = True, 0
            self._changed[row.place] = row
        row.is_answered = True
        if self._options.order == "key" and not self._has_context:
            self._go_on(row.key)
        if self._in_order:
            self._let_go_first()
        else:
            self._let_go(row)

    def _go_on(self, key: bytes) -> None:
        """Make the next record of a key ready."""
        waiting = self._keys[key]
        if waiting:
            row = waiting.popleft()
            self._held_back -= 1
            if not row.is_dropped:
                self._ready.append(row)
        else:
            del self._keys[key]

    def _is_dropped(self, row: _Row, error: BaseException) -> bool:
        """Ask the handler about a call that failed; return False if it is to be made again."""
        if isinstance(error, CallTimeout):
            error = ProcessingError(f"its call did not return within {self._options.timeout_ms} ms (timeout)")
        if not isinstance(error, RECORD_ERRORS):
            error = ProcessingError(f"its call ended with {type(error).__name__}: {error}")
        try:
            with _As(self._progress, self.name, row, self._passed):
                self._failures.answered(self.name, error, row.attempt, self._options.retries)
        except RetryRequested as retry:
            row.attempt += 1
            row.due = self._now() + retry.delay_ms
            self._delayed[row.place] = self._changed[row.place] = row
            self._progress.has_changed = True
            return False
        return True

    @property
    def _is_first_answered(self) -> bool:
        return any(row.is_answered for row in self.first_rows())

    def _let_go_first(self) -> None:
        """Let go, in the order of arrival, up to the first record without an answer."""
        while self._is_first_answered:
            self._let_go(next(self.rows))

    def _let_go(self, row: _Row) -> None:
        """Hand on a record with its result, as of its arrival, unless it was dropped; its turn has come."""
        self._passed = max(self._passed, row.stream_time)
        if not row.is_dropped:
            with _As(self._progress, self.name, row, self._passed):
                try:
                    self._emit(row.record, row.result)
                except RECORD_ERRORS as error:
                    self._failures.processing(self.name, row.record, error)
        self._forget(row)
        if self._options.order == "key" and self._has_context:  # the next `call` reads what this record has left
            self._go_on(row.key)
        self.last_result = self._progress.wall_clock
        del self._rows[row.place]
        self._handed_on()

    def _forget(self, row: _Row) -> None:
        self._changed.pop(row.place, None)
        if row.is_stored:
            row.is_stored = False
            self._store.put((row.number, row.record[0]), None)  # `delete` would read the row

    # ------------------------------------------------------------------ commit, and the end

    def write_rows(self) -> None:
        for row in self._changed.values():
            key, value, timestamp, headers = row.record
            # The source whole, whatever the handlers are: the next program may have those that send it away.
            saved = PendingRecord(value, headers, timestamp, row.stream_time, row.attempt, row.source)
            self._store.put((row.number, key), saved)
            row.is_stored = True
        self._changed.clear()

    def close(self) -> None:
        self._is_closed = True
        for future in self.under_way():
            future.cancel()


def _outcome_of(future: Future[Any]) -> tuple[Any, BaseException | None]:
    """Return the result of a call and its error, one of which is None."""
    error = future.exception()
    if error is not None:
        return None, error
    result = future.result()
    try:
        check_answer(result)
    except ProcessingError as found:
        return None, found
    return result, None


def _raise(error: BaseException) -> None:
    raise error


class _As:
    """The task's progress as of a record in flight, for the time of a `with`. Stream time is not before `passed`."""

    __slots__ = ("_before", "_name", "_passed", "_progress", "_row")

    def __init__(self, progress: TaskProgress, name: str, row: _Row, passed: int) -> None:
        self._progress, self._name, self._row, self._passed = progress, name, row, passed

    def __enter__(self) -> None:
        progress, row = self._progress, self._row
        self._before = progress.current()
        progress.input = progress.record = None
        progress.flushed, progress.stream_time = row.source, max(row.stream_time, self._passed)
        progress.occasion = (self._name, row.number)

    def __exit__(self, *_: object) -> None:
        self._progress.set_current(self._before)
