"""Calls: runs functions of the user beside the tasks, which take the results later."""

from __future__ import annotations

import logging
import os
import queue
import sys
import sysconfig
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from functools import cache
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..clock import SystemClock
from ..support.repeats import Repeats

if TYPE_CHECKING:  # it loads many modules, and most commands make no calls
    import asyncio

_log = logging.getLogger("penstock.calls")

_BLOCKED_SECONDS, _LOOKS = 1.0, 60
"""A loop that does not go on for so long is reported; so many looks follow the last call that was begun."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_MOST_THREADS = 512
"""Threads for plain functions in one process, without those whose function takes too long."""


class Calls(Protocol):
    """Calls functions that may wait, each beside the others.

    `are_held`: results come at once, or when a test gives them, and time is the test's: it is no use to wait.
    """

    are_held: bool = False

    def submit(
        self, function: Callable[[], Any], seconds: float, *, is_async: bool, limit: CallLimit | None = None
    ) -> Future[Any]:
        """Call `function`, or await what it returns (`is_async`), and return the future of its result.

        After `seconds` the future has a CallTimeout, whatever becomes of the call. A future that is cancelled cancels
        its coroutine. No call is begun in the thread of `submit`, unless the implementation says so. A call with a
        `limit` may wait until another one of that limit has ended; its time does not begin before.
        """
        ...

    def limit(self, most: int) -> CallLimit:
        """Return a limit of so many calls at once, for `submit`."""
        return CallLimit(most, most)


class CallTimeout(TimeoutError):
    """A call has taken too long. A TimeoutError of another kind is the call's own."""


class CallFuture(Future[Any]):
    """The result of a call. `seconds`: how long the call has taken, once it has a result."""

    seconds = 0.0


class CallLimit:
    """At most `most` calls at once. `most_submitted`: so many may have been submitted and have no result yet.

    Those beyond `most` wait, and begin as soon as others end, so nobody has to be quick to submit the next one.
    """

    __slots__ = ("most", "most_submitted", "open", "waiting")

    def __init__(self, most: int, most_submitted: int) -> None:
        self.most, self.most_submitted = most, most_submitted
        self.open = 0
        self.waiting: deque[_Submitted] = deque()


class _Submitted(NamedTuple):
    future: CallFuture
    function: Callable[[], Any]
    seconds: float
    is_async: bool
    limit: CallLimit | None


class ThreadCalls(Calls):
    """Coroutines run in one event loop, plain functions in threads. All threads are daemons, made when first needed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._submitted: deque[_Submitted] = deque()
        self._is_woken = False
        self._deadlines: dict[float, _Deadlines] = {}
        self._watch: _LoopWatch | None = None
        self._functions: queue.SimpleQueue[_FunctionCall] = queue.SimpleQueue()
        self._threads = self._open = 0  # open: functions that wait for a thread or run, if they are not too late

    def limit(self, most: int) -> CallLimit:
        return CallLimit(most, most + most // 2 + 1)

    def submit(
        self, function: Callable[[], Any], seconds: float, *, is_async: bool, limit: CallLimit | None = None
    ) -> Future[Any]:
        future = CallFuture()
        loop = self._loop or self._begin_loop()
        self._submitted.append(_Submitted(future, function, seconds, is_async, limit))
        if not self._is_woken:  # one wake-up for many calls
            self._is_woken = True
            loop.call_soon_threadsafe(self._begin_submitted)
            if self._watch is not None:
                self._watch.look()
        return future

    def _begin_loop(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = Thread(target=_run_for_ever, args=(loop,), name="penstock-calls", daemon=True)
                thread.start()
                self._watch = _LoopWatch(loop, thread)
                self._loop = loop
        return self._loop

    # ------------------------------------------------------------------ in the loop's thread

    def _begin_submitted(self) -> None:
        self._is_woken = False
        while self._submitted:
            submitted = self._submitted.popleft()
            limit = submitted.limit
            if limit is not None and limit.open >= limit.most:
                limit.waiting.append(submitted)
            else:
                self._begin(submitted)

    def _begin(self, submitted: _Submitted) -> None:
        if submitted.future.cancelled():
            return
        if submitted.limit is not None:
            submitted.limit.open += 1
        if submitted.is_async:
            self._begin_coroutine(submitted)
        else:
            self._begin_function(submitted)

    def _end(self, limit: CallLimit | None) -> None:
        """End a call of a limit, and begin those that there is room for."""
        if limit is not None:
            limit.open -= 1
            while limit.waiting and limit.open < limit.most:
                self._begin(limit.waiting.popleft())

    def _begin_coroutine(self, submitted: _Submitted) -> None:
        loop, seconds = self._loop, submitted.seconds
        assert loop is not None
        if (deadlines := self._deadlines.get(seconds)) is None:
            deadlines = self._deadlines[seconds] = _Deadlines(seconds, loop)
        deadlines.add(_CoroutineCall(submitted, loop, self._end))

    def _begin_function(self, submitted: _Submitted) -> None:
        import asyncio

        call = _FunctionCall(submitted, asyncio.get_running_loop(), self._end)
        call.watch(self._give_up)
        call.future.add_done_callback(call.end_watch)
        with self._lock:
            self._open += 1
            self._functions.put(call)
            self._add_thread()

    def _give_up(self, call: _FunctionCall) -> None:
        """Let a call fail that takes too long; its thread does not count any more."""
        with self._lock:
            if call.is_done:
                return
            call.is_late = True
            self._open -= 1
            self._threads -= 1
            self._add_thread()
        call.future.seconds = call.seconds
        _set_error(call.future, CallTimeout())

    def _add_thread(self) -> None:
        if self._threads < min(self._open, _MOST_THREADS):
            self._threads += 1
            Thread(target=self._run_functions, name="penstock-call", daemon=True).start()

    # ------------------------------------------------------------------ in a thread of plain functions

    def _run_functions(self) -> None:
        while True:
            call = self._functions.get()
            error, result = None, None
            if not call.future.done():  # else it was cancelled
                call.began = call.loop.time()
                try:
                    result = call.function()
                except BaseException as raised:  # sys.exit too: it must not end the thread in silence
                    error = raised
            with self._lock:
                call.is_done = True
                if call.is_late:
                    return
                self._open -= 1
            if call.began is not None:
                call.future.seconds = call.loop.time() - call.began
            if error is not None:
                _set_error(call.future, error)
            else:
                _set_result(call.future, result)
            del call, error, result


class _LoopWatch:
    """Looks each second whether the loop goes on, and names the line of a coroutine that holds it up.

    It rests once no coroutine was begun for a while.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: Thread) -> None:
        self._loop, self._thread = loop, thread
        self._repeats = Repeats(SystemClock().now_ms)
        self._looks = Event()
        Thread(target=self._run, name="penstock-calls-watch", daemon=True).start()

    def look(self) -> None:
        """Look for a while: the loop has something to do."""
        if not self._looks.is_set():
            self._looks.set()

    def _run(self) -> None:
        while True:
            self._looks.wait()
            self._looks.clear()
            for _ in range(_LOOKS):
                answered = Event()
                self._loop.call_soon_threadsafe(answered.set)
                if answered.wait(_BLOCKED_SECONDS):
                    time.sleep(_BLOCKED_SECONDS)
                else:
                    self._report()
                    answered.wait()

    def _report(self) -> None:
        frame = sys._current_frames().get(self._thread.ident or 0)
        line = None if frame is None else _line_of_coroutine(traceback.extract_stack(frame))
        if line is not None:  # else the process did not run, as after a suspend
            self._repeats.log(
                _log, logging.WARNING, (line.filename, line.lineno),
                "the event loop of this process's look-ups has not gone on for %g s: it is at %s:%s in %s, \"%s\". A "
                "coroutine that waits without await holds up all the others; a plain function instead of it gets a "
                "thread", _BLOCKED_SECONDS, line.filename, line.lineno, line.name, line.line,
            )  # fmt: skip


def _line_of_coroutine(stack: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """Return the innermost line of a coroutine function that is its user's own; None if none is called.

    It may run in a task that another coroutine has made, as `asyncio.gather` does.
    """
    begins = [number for number, each in enumerate(stack) if each.name == _CoroutineCall._answer.__name__]
    called = stack[begins[-1] + 1 :] if begins else []
    own = [each for each in stack if not each.filename.startswith((__file__, *_LIBRARIES))]
    found = own or called
    return found[-1] if found else None


class _CoroutineCall:
    """The call of a coroutine function. The loop's thread calls all methods but `cancel`."""

    __slots__ = ("_end", "_future", "_limit", "_loop", "_task", "began", "is_over")

    def __init__(
        self, submitted: _Submitted, loop: asyncio.AbstractEventLoop, end: Callable[[CallLimit | None], object]
    ) -> None:
        self._future: CallFuture | None = submitted.future
        self._limit, self._end, self._loop = submitted.limit, end, loop
        self.is_over = False
        self.began = loop.time()
        self._task: asyncio.Task[None] | None = loop.create_task(self._answer(submitted.function))
        submitted.future.add_done_callback(self._cancel)

    async def _answer(self, function: Callable[[], Any]) -> None:
        """Await the coroutine; what it raises never leaves this, as sys.exit would end the loop."""
        import asyncio

        result: Any = None
        error: BaseException | None = None
        try:
            result = await function()
        except asyncio.CancelledError:  # not by its time or its user, if it is not over
            error = asyncio.CancelledError("the coroutine was cancelled from within")
        except BaseException as raised:
            error = raised
        if self.is_over:  # it was too late
            return
        future = self._close()
        if error is None:
            _set_result(future, result)
        else:
            _set_error(future, error)

    def expire(self) -> None:
        """End the call: its time is over."""
        task = self._task
        assert task is not None
        _set_error(self._close(), CallTimeout())
        task.cancel()

    def _cancel(self, future: Future[Any]) -> None:
        if future.cancelled():
            self._loop.call_soon_threadsafe(self._end_cancelled)

    def _end_cancelled(self) -> None:
        if not self.is_over:
            task = self._task
            assert task is not None
            self._close()
            task.cancel()

    def _close(self) -> CallFuture:
        future = self._future
        assert future is not None
        future.seconds = self._loop.time() - self.began
        self.is_over = True
        self._task = self._future = None  # a call that is not over may be in front of it among the deadlines
        self._end(self._limit)
        return future


class _Deadlines:
    """The time limits of coroutines that may all take equally long: one timer, since most of them end long before.

    A timer of each would be in the loop's heap for as long as it may take, and make every other timer slow.
    """

    def __init__(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self._seconds, self._loop = seconds, loop
        self._calls: deque[_CoroutineCall] = deque()
        self._is_timed = False

    def add(self, call: _CoroutineCall) -> None:
        """Watch a call that begins now."""
        calls = self._calls
        while calls and calls[0].is_over:
            calls.popleft()
        calls.append(call)
        if not self._is_timed:
            self._is_timed = True
            self._loop.call_later(self._seconds, self._look)

    def _look(self) -> None:
        calls = self._calls
        self._is_timed = False
        while calls:
            call = calls[0]
            if not call.is_over and (at := call.began + self._seconds) > self._loop.time():
                self._is_timed = True
                self._loop.call_at(at, self._look)
                return
            calls.popleft()
            if not call.is_over:
                call.expire()


class _FunctionCall:
    """The call of a plain function. Its time begins when a thread has begun it."""

    def __init__(
        self, submitted: _Submitted, loop: asyncio.AbstractEventLoop, end: Callable[[CallLimit | None], object]
    ) -> None:
        self.future, self.function, self.seconds, _, self._limit = submitted
        self.loop, self._end = loop, end
        self.began: float | None = None
        self.is_done = self.is_late = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, give_up: Callable[[_FunctionCall], object]) -> None:
        """Call `give_up` when the function has taken too long. The loop's thread calls this."""
        if self.future.done():
            return
        left = self.seconds if self.began is None else self.began + self.seconds - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self.watch, give_up)
        else:
            give_up(self)

    def end_watch(self, _: object) -> None:
        """Watch no more, and let the next call begin."""
        self.loop.call_soon_threadsafe(self._end_watch)

    def _end_watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._end(self._limit)


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop that nobody ends: not a task of a coroutine, by sys.exit or Ctrl-C, nor `loop.stop`."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue  # whoever awaits the task gets the error


async def awaited(function: Callable[[], Any]) -> Any:
    """Return what a coroutine function returns."""
    return await function()


def _set_result(future: Future[Any], result: Any) -> None:
    """Set the result of a future, unless it has one or was cancelled."""
    try:
        future.set_result(result)
    except InvalidStateError:
        pass


def _set_error(future: Future[Any], error: BaseException) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        pass


@cache
def process_calls() -> ThreadCalls:
    """Return the calls of this process: one event loop for all, so clients that are bound to it may be shared."""
    return ThreadCalls()


os.register_at_fork(after_in_child=process_calls.cache_clear)  # a child has none of the threads


class InlineCalls(Calls):
    """Returns from `submit` when the call has ended: for tests, whose results then come in order."""

    are_held = True

    def submit(
        self, function: Callable[[], Any], seconds: float, *, is_async: bool, limit: CallLimit | None = None
    ) -> Future[Any]:
        future = process_calls().submit(function, seconds, is_async=is_async)
        wait([future])
        return future
