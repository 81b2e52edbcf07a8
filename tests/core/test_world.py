"""The world's own parts: a ticker that goes on after a call that failed."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from penstock.world import ThreadTicker

from ..waiting import wait_until


def test_a_ticker_goes_on_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """Who waits for what it does would wait for ever, and see nothing wrong."""
    calls: list[int] = []
    was_last = threading.Event()

    def call() -> None:
        calls.append(len(calls))
        if len(calls) in (1, 3):
            raise ZeroDivisionError("not penstock's")
        if len(calls) > 4:
            was_last.set()

    with closing(ThreadTicker("penstock-tests", 0.001, call)):
        wait_until(was_last.is_set)
    said = [each.getMessage() for each in caplog.records if each.name == "penstock.world"]
    assert len(said) == 1, "the first one, then one a minute"
    assert "penstock-tests: a call failed" in said[0] and "ZeroDivisionError: not penstock's" in said[0]
    assert "test_world.py" in said[0], "with its traceback"
