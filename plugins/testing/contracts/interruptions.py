"""Interruptions: ends a call before one of its steps, for contracts of things that must not be left half done."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_CONTRACTS = os.path.dirname(__file__)
"""The folder of the suites, whose own steps do not count."""
_MOST_STEPS = 40
"""Number of steps of a write before which it is interrupted, spread over all of them."""


class Interrupted(BaseException):
    """Ends a write."""


def was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error is the interruption, or an error that was made of it."""
    while error is not None:
        # Code in Rust, as pydantic's, makes another error of it, with its name in the text.
        if isinstance(error, Interrupted) or Interrupted.__name__ in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def call_at_step(step: int, act: Callable[[], None], call: Callable[[], object]) -> int:
    """Call `call`, and `act` before its step of this number: before a call of a function, or a line of Python.

    Return the number of steps.
    """
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        file = frame.f_code.co_filename
        if file.startswith(_CONTRACTS) or "threading" in file:
            return trace if file.startswith(_CONTRACTS) else None
        count += 1
        if count == step:
            sys.settrace(None)
            act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def steps_of(call: Callable[[], object]) -> list[int]:
    """Call `call`, and return the steps before which it is to end: up to 40, spread over all of them."""
    count = call_at_step(-1, lambda: None, call)
    return list(range(1, count + 1, max(1, count // _MOST_STEPS)))


def interrupt_at(step: int, call: Callable[[], object]) -> None:
    """Call `call`, and interrupt it before its step of this number. Raises every other error."""

    def interrupt() -> None:
        raise Interrupted

    try:
        call_at_step(step, interrupt, call)
    except BaseException as error:
        if not was_interrupted(error):
            raise


def kill_at(step: int, prepare: Callable[[], Callable[[], object]]) -> None:
    """Call what `prepare` returns, in a process that is killed before the step of this number."""
    child = os.fork()
    if child == 0:
        try:
            call_at_step(step, lambda: os.kill(os.getpid(), signal.SIGKILL), prepare())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
