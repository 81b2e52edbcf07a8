"""A few rounds of kill -9; `python -m tests.crash` runs as many as it is told."""

from __future__ import annotations

import pytest

from .harness import run


@pytest.mark.spark
def test_kills_and_restarts_change_nothing() -> None:
    tally = run(rounds=4, seed=20)
    assert tally.rounds == 4
    assert (tally.lost, tally.duplicated, tally.wrong) == (0, 0, [])
