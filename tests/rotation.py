"""A part of many cases, another one each day: for cases that take too long to have all of them in every run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date
from typing import TypeVar

import pytest

Case = TypeVar("Case")

DAY = os.environ.setdefault("TESTS_OF_DAY", str(date.today().toordinal()))
"""A number, which the processes that pytest-xdist starts have from the first one, or "all" (`make test-all`). No name
that begins with PENSTOCK_: those are settings."""

WHOLE = 8
"""Tests that take whole applications on Spark through a kill: so many, in the crash tests, the demo and on a cluster.
Each of them takes one to three minutes of `make test` and has a day of its own."""


def is_today(turn: int, parts: int) -> bool:
    """Return whether it is the turn of one of so many parts, counted from 0; in as many days each has its turn."""
    return DAY == "all" or int(DAY) % parts == turn % parts


def of_today(cases: Sequence[Case], parts: int) -> list[Case]:
    """Return one of so many parts of the cases."""
    return [case for number, case in enumerate(cases) if is_today(number, parts)]


def examples(number: int) -> int:
    """Return how many examples of a property to try: half of them in each run, which draws others, but where all tests
    run."""
    return number if DAY == "all" else -(-number // 2)


def by_turns(turn: int, parts: int) -> pytest.MarkDecorator:
    """Mark a test that runs on one of so many days."""
    return pytest.mark.skipif(
        not is_today(turn, parts), reason=f"another day's, as every {parts} days: TESTS_OF_DAY=all runs it"
    )
