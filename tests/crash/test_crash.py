"""A few rounds of faults; `make soak` runs all kinds, and `python -m tests.crash` as many as it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ..rotation import WHOLE, by_turns, of_today
from .harness import Options, run


# Each program, log, mode and changelog once; seeds whose faults come early. The zombie halts behind a store's write,
# its successor is at rest. Two brokers, because one answers for all inputs of a task at once.
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(Options("local", seed=74, faults=("zombies",)), marks=by_turns(0, WHOLE)),
        pytest.param(
            Options(
                "kafka", seed=2, changelog="topic", faults=("kill hosts",), program="dsl", mode="continuous", brokers=2
            ),
            marks=by_turns(3, WHOLE),
        ),
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


ON_THE_EMBEDDED_ENGINE = [("kill driver", "processor"), ("go back", "processor"), ("kill driver", "batches")]


@pytest.mark.parametrize(("fault", "program"), of_today(ON_THE_EMBEDDED_ENGINE, 3))
def test_faults_change_nothing_on_the_embedded_engine(fault: str, program: str) -> None:
    options = Options("local", seed=5, rounds=1, faults=(fault,), program=program, mode="continuous", engine="embedded")
    tally = run(options)
    assert tally.rounds == 1
    assert tally.passed, tally.verdict
