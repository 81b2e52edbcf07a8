"""Interruptions: ends a call before one of its steps, for contracts of things that must not be left half done."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

_CONTRACTS = os.path.dirname(__file__)
"""The folder of the suites, whose own steps do not count."""


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
