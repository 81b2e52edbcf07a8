"""A few rounds of faults; `python -m tests.crash` runs as many as it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .harness import Options, run


# Seeds whose faults come early, after some hundred outputs; the zombie halts behind a store's write, its successor is
# at rest.
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize(
    "options",
    [
        Options("local", seed=3410, faults=("zombies", "second hosts")),
        Options("kafka", seed=280, changelog="topic", faults=("kill broker", "kill hosts")),
        Options("kafka", seed=4, guarantee="at_least_once", faults=("take over",)),
        Options("kafka", seed=27, faults=("lose offsets",)),
        Options("local", seed=32, faults=("kill tree",), program="dsl"),
        # Two brokers, because one answers for all inputs of a task at once.
        Options("kafka", 1, 62, changelog="topic", faults=("kill hosts",), program="dsl", mode="continuous", brokers=2),
    ],
    ids=lambda options: (
        f"{options.program}, {options.mode}, {options.log}, {options.changelog}, {options.guarantee}: "
        f"{' and '.join(options.faults)}"
    ),
)
def test_faults_change_nothing(options: Options) -> None:
    tally = run(replace(options, rounds=len(options.faults)))
    assert tally.rounds == len(options.faults)
    assert tally.passed, tally.verdict
