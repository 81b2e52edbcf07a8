"""HostWorld: the World of one simulated host. Time is the simulation's; submitted calls wait until a step runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from penstock import Clock, World
from penstock.world import Files, LocalFiles, Ticker

from .failure import HostDied
from .host_backend import HostBackend, StoreEdge
from .timeline import Timeline

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
            files=files or LocalFiles(),
            backend=lambda below: HostBackend(below, keeping),
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
        """Run `calls`, and those that they submit, without those of the pool `but`; return how many there were."""
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
        """Let tickers call what they call."""
        for each in self._tickers:
            each.tick()

    def _wait(self, given: Collection[Future[Any]], seconds: float | None = None, /) -> None:
        """Run this host's calls, first of all those that are waited for, until these are done.

        Others would run inside this one, and could not wait for it.
        """
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
