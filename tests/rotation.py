"""A part of many cases, another one each day: for cases that take too long to have all of them in every run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date
from typing import TypeVar

Case = TypeVar("Case")

DAY = int(os.environ.setdefault("PENSTOCK_TEST_DAY", str(date.today().toordinal())))
"""Set for the processes that pytest-xdist starts, too, so that all have the same; `PENSTOCK_TEST_DAY=N` repeats one."""


def of_today(cases: Sequence[Case], parts: int) -> Sequence[Case]:
    """Return one of so many parts of the cases; in as many days each case has its turn."""
    return cases[DAY % parts :: parts]
