"""Waiting for a condition, in every test that waits for one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], what: str = "it is so", seconds: float = 60.0) -> Any:
    """Return what `condition` answers once it is true; fail after `seconds`, which only a broken program takes."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s until {what}"
        time.sleep(0.02)
    return found
