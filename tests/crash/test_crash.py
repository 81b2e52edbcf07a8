"""A few rounds of kill -9; `python -m tests.crash` runs as many as it is told."""

from __future__ import annotations

import pytest

from .__main__ import maker
from .harness import run


@pytest.mark.spark
def test_kills_and_restarts_change_nothing() -> None:
    tally = run(4, maker("local", 20, "exactly_once"))
    assert tally.rounds == 4
    assert (tally.lost, tally.duplicated, tally.wrong) == (0, 0, [])


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize(
    ("guarantee", "rounds", "changelog"), [("exactly_once", 4, "topic"), ("at_least_once", 1, "directory")]
)
def test_nor_on_kafka_whose_broker_is_killed_too(guarantee: str, rounds: int, changelog: str) -> None:
    tally = run(rounds, maker("kafka", 1, guarantee, changelog))
    assert tally.rounds == rounds
    assert (tally.lost, tally.duplicated, tally.wrong) == (0, 0, [])
