"""World: the engine's outside: threads, waiting, random tokens, files and store backends.

What runs tasks reads no clock, starts no thread and makes no random name by itself: its host hands a World down to it.
A test, or a simulator, hands down a World of its own, so the same code runs there in an order that the test chooses.
"""

from __future__ import annotations

import logging
import secrets
import time
import traceback
from collections.abc import Callable, Collection
from concurrent import futures
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, Protocol

from ..clock import Clock, SystemClock
from ..sink import AnySink
from ..store import StoreBackend
from ..support.repeats import Repeats
from .calls import Calls, process_calls
from .files import Files, LocalFiles

_log = logging.getLogger("penstock.world")


class Wait(Protocol):
    """Waits for futures."""

    def __call__(self, given: Collection[Future[Any]], seconds: float | None = None, /) -> object:
        """Return when all of them are done, or after `seconds` (None: however long that takes)."""
        ...


class Ticker(Protocol):
    """Calls a function again and again, until it is closed."""

    def pause(self) -> None:
        """Call it no more until `resume`; a call may have begun before. The function itself may pause its ticker."""
        ...

    def resume(self) -> None:
        """Go on after `pause`, with a call at once; idempotent."""
        ...

    def close(self) -> None:
        """Stop the calls; a running call is over when this returns. Idempotent."""
        ...


class ThreadTicker(Ticker):
    """A ticker with a thread of its own. The first call is at once, and the next one `seconds` later.

    A call that takes longer than `seconds` delays those after it. One that raises is logged, and those after it follow.
    """

    def __init__(self, name: str, seconds: float, call: Callable[[], object]) -> None:
        self._name = name
        self._seconds = seconds
        self._call = call
        self._repeats = Repeats(SystemClock().now_ms)
        self._ended, self._goes = Event(), Event()
        self._goes.set()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        next_at = time.perf_counter()
        while not self._ended.wait(max(0.0, next_at - time.perf_counter())):
            self._goes.wait()
            if self._ended.is_set():
                return
            next_at = max(next_at + self._seconds, time.perf_counter())
            try:
                self._call()
            except Exception as error:
                # Whoever waits for what this does would wait for ever, and see nothing wrong.
                self._repeats.log(
                    _log, logging.ERROR, type(error).__name__, "%s: a call failed, and the next one follows: %s",
                    self._name, "".join(traceback.format_exception(error)).rstrip(),
                )  # fmt: skip

    def pause(self) -> None:
        self._goes.clear()

    def resume(self) -> None:
        self._goes.set()

    def close(self) -> None:
        self._ended.set()
        self._goes.set()
        self._thread.join()


def _itself(backend: StoreBackend) -> StoreBackend:
    """Return the backend: nothing stands between it and its user."""
    return backend


def _of_program(node: str, sink: AnySink) -> AnySink:
    """Return the sink of the program."""
    return sink


@dataclass(frozen=True)
class World:
    """The machine's clocks, threads, random numbers and files. Each part can be replaced by another of its type.

    >>> from penstock import ManualClock
    >>> World(clock=ManualClock(5)).clock.now_ms()
    5
    """

    clock: Clock = field(default_factory=SystemClock)
    """The wall clock: it may jump, also back. Tasks do not read it; they get the time of their batch."""
    seconds: Callable[[], float] = time.perf_counter
    """Returns seconds of a stopwatch, which never goes back; only differences have a meaning."""
    sleep: Callable[[float], object] = time.sleep
    """Waits for so many seconds."""
    threads: Callable[[int, str], Executor] = ThreadPoolExecutor
    """Makes a pool of at most so many threads, named like this; `submit` does not wait."""
    wait: Wait = futures.wait
    """Waits for futures of calls that were submitted to `threads`."""
    ticker: Callable[[str, float, Callable[[], object]], Ticker] = ThreadTicker
    """Makes a ticker: its name, the seconds from call to call, and what it calls, in a thread of its own."""
    token: Callable[[int], str] = secrets.token_hex
    """Returns so many random bytes as hexadecimal digits: for names that no other process may have given."""
    calls: Calls = field(default_factory=process_calls)
    """Makes the calls of nodes that answer later."""
    files: Files = field(default_factory=LocalFiles)
    """The file system of changelogs in directories."""
    backend: Callable[[StoreBackend], StoreBackend] = _itself
    """Returns a replacement for an opened store backend, for a task or a replica."""
    sink: Callable[[str, AnySink], AnySink] = _of_program
    """Returns the target of an external sink: gets its node, and the sink of the program."""
