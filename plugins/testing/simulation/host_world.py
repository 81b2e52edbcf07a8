"""HostWorld: the World of one simulated host, the time of all hosts, and the exceptions that end either."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import count
from traceback import extract_tb
from typing import Any, cast

from penstock import Clock, Files, LocalFiles, PenstockError, StoreBackend, StoreError, Ticker, World
from penstock.plugins.sinks.memory import ScratchTarget
from penstock.store import Changes
from penstock.world.calls import CallLimit, Calls, awaited

UPKEEP = "penstock-upkeep"
"""The threads of a host that write snapshots and clean."""
LATE = ("", "", UPKEEP, "penstock-commits")
"""The threads of a host that may be slower than others, chosen by a number; in half of the cases none are."""


@dataclass(frozen=True)
class Call:
    """A call that was submitted to a pool."""

    pool: str
    future: Future[Any]
    run: Callable[[], Any]


class HostWorld(Clock):
    """`world` is what the host's engine gets; this is its clock. `machine`: the number of the host's machine.

    `keeping` makes each write to local state, unless a fault strikes. `ahead_ms`: by how much the host's clock is ahead
    of the others'.
    """

    def __init__(
        self,
        timeline: Timeline,
        files: Files | None = None,
        machine: int = -1,
        keeping: StoreEdge = lambda what, call: call(),
    ) -> None:
        self._timeline = timeline
        self.machine = machine
        self.ahead_ms = 0
        self.calls: list[Call] = []
        """Calls that no step has run yet, in the order in which they were submitted."""
        self.pool = ""
        """The pool whose call runs now; "" for none."""
        self._tickers: list[_Ticker] = []
        self.world = World(
            clock=self,
            seconds=timeline.seconds,
            sleep=timeline.pass_by,
            threads=lambda size, name: _Pool(name, self.calls),
            wait=self._wait,
            ticker=self._ticker,
            token=timeline.token,
            calls=_Calls(self.calls),
            files=files or LocalFiles(),
            backend=lambda below: cast(StoreBackend, HostBackend(below, keeping)),
            sink=timeline.target,
        )

    def now_ms(self) -> int:
        return self._timeline.now_ms() + self.ahead_ms

    def run(self, number: int) -> None:
        """Run one of `calls`. Raises HostDied where the host dies in it; other errors are the future's."""
        call = self.calls.pop(number)
        if not call.future.set_running_or_notify_cancel():
            return
        before, self.pool = self.pool, call.pool
        try:
            result = call.run()
        except HostDied:
            raise
        except BaseException as error:
            call.future.set_exception(error)
        else:
            call.future.set_result(result)
        finally:
            self.pool = before

    def run_all(self, *, but: str = "") -> int:
        """Run `calls` and the calls that they submit, except the pool `but`'s; return their number."""
        count = 0
        while (number := next((at for at, call in enumerate(self.calls) if call.pool != but), None)) is not None:
            self.run(number)
            count += 1
        return count

    def run_first(self, pool: str) -> None:
        """Run the first call of a pool, if there is one."""
        number = next((at for at, call in enumerate(self.calls) if call.pool == pool), None)
        if number is not None:
            self.run(number)

    def tick(self) -> None:
        """Make the calls of all tickers."""
        for ticker in self._tickers:
            ticker.tick()

    def _wait(self, given: Collection[Future[Any]], seconds: float | None = None, /) -> None:
        """Run this host's calls until the awaited ones are done, those first: others could not wait for it."""
        while not all(each.done() for each in given):
            if self.calls:
                self.run(next((number for number, call in enumerate(self.calls) if call.future in given), 0))
            elif seconds is not None:
                self._timeline.pass_by(seconds)
                return
            else:
                raise AssertionError("a host waits for a call that was never submitted: it would wait for ever")

    def _ticker(self, name: str, seconds: float, call: Callable[[], object]) -> Ticker:
        made = _Ticker(call)
        self._tickers.append(made)
        return made


class _Pool(Executor):
    def __init__(self, name: str, calls: list[Call]) -> None:
        self._name = name
        self._calls = calls

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.append(Call(self._name, future, lambda: call(*arguments, **named)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            for call in [each for each in self._calls if each.pool == self._name]:
                call.future.cancel()
                self._calls.remove(call)


class _Calls(Calls):
    """Calls of the program's async verbs: each returns in a step of its own."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls

    def submit(
        self, function: Callable[[], Any], seconds: float, *, is_async: bool, limit: CallLimit | None = None
    ) -> Future[Any]:
        future: Future[Any] = Future()
        run = (lambda: asyncio.run(awaited(function))) if is_async else function
        self._calls.append(Call("penstock-calls", future, run))
        return future


class _Ticker(Ticker):
    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._goes = True

    def tick(self) -> None:
        if self._goes:
            self._call()

    def pause(self) -> None:
        self._goes = False

    def resume(self) -> None:
        self._goes = True

    def close(self) -> None:
        self._goes = False


StoreEdge = Callable[[str, Callable[[], Any]], Any]
"""(what a host does, the call that does it) -> what the call returns; a fault may strike before or after it."""


class HostBackend:
    """Another backend, with a fault at a write where `edge` has one for it."""

    def __init__(self, below: StoreBackend, edge: StoreEdge) -> None:
        self._below = below
        self._edge = edge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        """Write to the backend below. Raises StoreError where a fault refuses it."""
        rows = sum(map(len, changes.values()))
        try:
            self._edge(
                f"keeps {rows} row{'' if rows == 1 else 's'} at {version}",
                lambda: self._below.write(changes, previous, version),
            )
        except SimulatedDiskError as error:
            raise StoreError(f"the simulated local state has no room: {error}") from error


BEGINNING_MS = 1_700_000_000_000


class Timeline:
    """Time passes when a step says so. All hosts share it; each may have a clock that is ahead of it."""

    def __init__(self, beginning_ms: int = BEGINNING_MS) -> None:
        self._beginning_ms = beginning_ms
        self._seconds = 0.0
        self._tokens = count(1)
        self._is_event = False
        self.story: list[str] = []
        """A line for each thing that happened, in order. Events have a number: what each step did first, and faults."""
        self.events = 0
        """How many events there were."""
        self.target = ScratchTarget()
        """The target of all external sinks: nothing outside of the simulation is written."""
        self.on_passing: Callable[[], None] = lambda: None
        """Called when time has passed."""

    def seconds(self) -> float:
        """Return the seconds since the beginning."""
        return self._seconds

    def now_ms(self) -> int:
        """Return the time in ms since the epoch."""
        return self._beginning_ms + round(self._seconds * 1000)

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self._seconds += seconds
        self.on_passing()

    def token(self, size: int) -> str:
        """Return a name of so many bytes, in hexadecimal digits, that was not given before."""
        return f"{next(self._tokens):0{2 * size}x}"

    def begin_step(self) -> None:
        """Begin a step: the next line of the story is an event, with a number."""
        self._is_event = True

    def end_steps(self) -> None:
        """End the steps: later lines of the story have no numbers."""
        self._is_event = False

    def failure(self, what: str) -> SimulationFailure:
        """Return the failure of the history up to now."""
        return SimulationFailure(what, self.story, self.events)

    def tell(self, what: str, *, is_event: bool = False) -> None:
        """Add a line to the story."""
        is_event, self._is_event = is_event or self._is_event, False
        self.events += is_event
        number = str(self.events) if is_event else ""
        self.story.append(f"{self._seconds:9.3f} {number:>3} {what}")


class HostDied(BaseException):
    """Raised in a simulated host at the place where it dies; no code but the simulator's may catch it for good."""


class SimulatedOutage(Exception):
    """The cause of a LogError that the simulator has made up."""


class SimulatedDiskError(OSError):
    """An error of the disk that the simulator has made up."""


class SimulationFailure(AssertionError):
    """A history after which something is not as it would be without faults.

    `story` has a line for each thing that happened, and `events` of them are events: what a step did, or a fault.
    """

    def __init__(self, what: str, story: Sequence[str], events: int) -> None:
        self.what = what
        self.story = tuple(story)
        self.events = events
        lines = "\n".join(f"  {line}" for line in self.story)
        super().__init__(f"{what}\nThe history: the simulated time in seconds, and the number of each event:\n{lines}")

    def __reduce__(self) -> tuple[type[SimulationFailure], tuple[str, tuple[str, ...], int]]:
        return type(self), (self.what, self.story, self.events)


def described(error: BaseException) -> str:
    """Return an error with its kind; one that is not meant for users, also with the line of code that raised it."""
    text, frames = f"{type(error).__name__}: {error}", extract_tb(error.__traceback__)
    if isinstance(error, PenstockError) or not frames:
        return text
    last = frames[-1]
    return f"{text} ({os.path.basename(last.filename)}, line {last.lineno}, in {last.name}: {last.line})"
