"""HandWorld: a world whose time passes, and whose threads do their work, when a test says so; in the test's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from typing import Any

from penstock.world import Ticker, World


class HandPool(Executor):
    """Does what was submitted when it is told to, in the order in which it was submitted."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: call(*arguments, **named)))
        return future

    def run(self) -> None:
        while self.waiting:
            future, call = self.waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while cancel_futures and self.waiting:
            self.waiting.popleft()[0].cancel()


class HandTicker(Ticker):
    """Calls its function when time passes."""

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


class HandWorld:
    """`world` is what the engine gets. `now` is its stopwatch, and its clock in seconds; `pools` are by name."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.pools: dict[str, HandPool] = {}
        self._tickers: list[HandTicker] = []
        self.world = World(
            clock=self,
            seconds=lambda: self.now,
            sleep=self.pass_by,
            threads=lambda size, name: self.pools.setdefault(name, HandPool()),
            wait=self._wait,
            ticker=self._ticker,
        )

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def pass_by(self, seconds: float) -> None:
        """Let time pass, and tickers tick once."""
        self.now += seconds
        for each in self._tickers:
            each.tick()

    def run_threads(self) -> None:
        """Do all that was submitted."""
        for pool in list(self.pools.values()):
            pool.run()

    def _wait(self, given: Collection[Future[Any]], seconds: float | None = None, /) -> None:
        while not all(each.done() for each in given):
            self.run_threads()

    def _ticker(self, name: str, seconds: float, call: Callable[[], object]) -> HandTicker:
        self._tickers.append(HandTicker(call))
        return self._tickers[-1]
