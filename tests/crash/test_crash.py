"""A few rounds of faults; `python -m tests.crash` runs as many as it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .harness import Options, run


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize(
    "options",
    [
        Options("local", seed=13, faults=("zombies", "kill jvm")),
        Options("kafka", changelog="topic", faults=("kill broker", "kill workers")),
        Options("kafka", seed=8, guarantee="at_least_once", faults=("take over",)),
        Options("kafka", faults=("lose offsets",)),
    ],
    ids=lambda options: f"{options.log}, {options.changelog}, {options.guarantee}: {' and '.join(options.faults)}",
)
def test_faults_change_nothing(options: Options) -> None:
    tally = run(replace(options, rounds=len(options.faults)))
    assert tally.rounds == len(options.faults)
    assert tally.passed, tally.verdict
