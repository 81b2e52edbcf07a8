"""Calls of functions beside the tasks: what user code may do to the loop and the threads of the process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Any

import pytest

from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver
from penstock.world import calls as calls_module
from penstock.world.calls import CallTimeout, ThreadCalls

_SECONDS = 20.0


def outcome(calls: ThreadCalls, function: Callable[[], Any], *, is_async: bool, seconds: float = _SECONDS) -> Any:
    future = calls.submit(function, seconds, is_async=is_async)
    wait([future], _SECONDS)
    assert future.done(), "nobody answers this call"
    error = future.exception()
    return future.result() if error is None else type(error)


async def exits() -> None:
    sys.exit(3)


async def interrupts() -> None:
    raise KeyboardInterrupt


async def has_a_task_that_exits() -> None:
    await asyncio.gather(exits(), asyncio.sleep(0))


async def stops_the_loop() -> int:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    return 1


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(_SECONDS)


async def goes_on() -> int:
    return 2


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (exits, SystemExit), (interrupts, KeyboardInterrupt), (has_a_task_that_exits, SystemExit), (stops_the_loop, 1),
        (cancels_itself, asyncio.CancelledError),
    ],
)  # fmt: skip
def test_a_coroutine_does_not_end_the_loop_of_the_others(function: Callable[[], Any], expected: Any) -> None:
    calls = ThreadCalls()
    assert outcome(calls, function, is_async=True) == expected
    assert outcome(calls, goes_on, is_async=True) == 2
    gc.collect()


def test_a_function_that_waits_for_a_thread_is_not_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a call begins when its function does: else too few threads would make records fail."""
    monkeypatch.setattr(calls_module, "_MOST_THREADS", 1)
    calls, goes = ThreadCalls(), threading.Event()
    first = calls.submit(lambda: goes.wait(_SECONDS), _SECONDS, is_async=False)
    second = calls.submit(lambda: "second", 0.01, is_async=False)
    outcome(calls, goes_on, is_async=True)
    wait([second], 0.1)
    assert not second.done()
    goes.set()
    assert (first.result(_SECONDS), second.result(_SECONDS)) == (True, "second")


def test_functions_that_never_return_leave_threads_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "_MOST_THREADS", 2)
    calls, goes = ThreadCalls(), threading.Event()
    try:
        for _ in range(4):
            assert outcome(calls, lambda: goes.wait(_SECONDS), is_async=False, seconds=0.01) is CallTimeout
        assert outcome(calls, lambda: 2, is_async=False) == 2
    finally:
        goes.set()


@pytest.mark.parametrize("is_async", [True, False])
def test_calls_beyond_a_limit_begin_when_others_end(is_async: bool) -> None:
    """So many are open at once, whoever is slow to take the results; a call that waits is not too late."""
    calls, lock, open_calls, most = ThreadCalls(), threading.Lock(), 0, []
    limit = calls.limit(3)

    def begin(number: int) -> None:
        nonlocal open_calls
        with lock:
            open_calls += 1
            most.append(open_calls)

    def end(number: int) -> int:
        nonlocal open_calls
        with lock:
            open_calls -= 1
        if number % 5 == 1:
            raise ValueError(number)
        return number

    def plain(number: int) -> int:
        begin(number)
        threading.Event().wait(0.01)
        return end(number)

    async def coroutine(number: int) -> int:
        begin(number)
        await asyncio.sleep(_SECONDS if number % 7 == 2 else 0.01)
        return end(number)

    function = coroutine if is_async else plain
    seconds = [0.05 if is_async else _SECONDS] * 30
    futures = [
        calls.submit(partial(function, number), seconds[number], is_async=is_async, limit=limit) for number in range(30)
    ]
    cancelled = [each for each in futures[20:23] if each.cancel()]
    left = [each for each in futures if each not in cancelled]
    assert not wait(left, _SECONDS).not_done
    too_late = {number for number in range(30) if is_async and number % 7 == 2}
    for number, future in enumerate(futures):
        if future in left:
            error = future.exception()
            expected = CallTimeout if number in too_late else ValueError if number % 5 == 1 else None
            assert (None if error is None else type(error)) is expected
    # Every place is free again: as many calls as before are open at once, and no more.
    again = [calls.submit(partial(function, 3), _SECONDS, is_async=is_async, limit=limit) for _ in range(9)]
    assert [each.result(_SECONDS) for each in again] == [3] * 9
    assert limit.open == 0 or not is_async
    # A coroutine that is too late is cancelled, and has not ended by itself.
    assert max(most) <= limit.most + len(too_late)


async def blocks(seconds: float) -> None:
    time.sleep(seconds)


def test_a_coroutine_that_blocks_the_loop_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls_module, "_BLOCKED_SECONDS", 0.05)
    calls = ThreadCalls()
    with caplog.at_level(logging.WARNING, "penstock.calls"):
        assert outcome(calls, partial(asyncio.sleep, 0.2), is_async=True) is None
        assert not caplog.messages
        assert outcome(calls, partial(blocks, 0.5), is_async=True) is None
    assert re.search(r"test_calls\.py:\d+ in blocks, \"time\.sleep\(seconds\)\"", caplog.text)


async def blocks_in_a_task_of_its_own(seconds: float) -> None:
    await asyncio.gather(blocks(seconds), asyncio.sleep(0))


def test_a_task_of_a_coroutine_that_blocks_the_loop_is_named_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls_module, "_BLOCKED_SECONDS", 0.05)
    with caplog.at_level(logging.WARNING, "penstock.calls"):
        assert outcome(ThreadCalls(), partial(blocks_in_a_task_of_its_own, 0.5), is_async=True) is None
    assert re.search(r"test_calls\.py:\d+ in blocks, \"time\.sleep\(seconds\)\"", caplog.text)


def test_many_test_drivers_have_one_loop() -> None:
    """Each would keep open files, and a client that is bound to a loop could not be used in the next test."""
    limit = asyncio.Semaphore(1)

    async def limited(value: str) -> str:
        async with limit:
            await asyncio.sleep(0)
            return value + str(id(asyncio.get_running_loop()))

    def loop_of_a_driver(hold_calls: bool) -> Any:
        builder = StreamsBuilder()
        function: Any = limited
        builder.stream("in").map_values_async(function, name="look").to("out")
        with TopologyTestDriver(builder, hold_calls=hold_calls) as driver:
            driver.pipe("in", "a", "")
            for call in driver.calls:
                call.run()
            return driver.read_all("out")[0].value

    first = loop_of_a_driver(False)
    files = len(os.listdir("/proc/self/fd"))
    assert {loop_of_a_driver(False), loop_of_a_driver(True)} == {first}
    assert len(os.listdir("/proc/self/fd")) <= files
