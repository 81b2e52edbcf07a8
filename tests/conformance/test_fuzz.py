"""Generated programs can be built; and what Kafka Streams says of them, where its jars are on this machine."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from penstock.plugins.embedded.engine import stepping_embedded

from .fuzz import differences, generated_case
from .language import settings_for
from .log_driver import CaseDriver
from .recording import recorded, recorder_is_there
from .runner import BUILDERS, Case, TestDriver, load, play

needs_recorder = pytest.mark.skipif(
    not recorder_is_there(), reason="`python -m tests.conformance.fuzz` fetches the jars, and needs a JDK"
)


def generated(seed: int, *, optimize: bool) -> Case:
    return generated_case(f"steps/{seed}", random.Random(seed), verbs=16, inputs=0, optimize=optimize)


@pytest.mark.parametrize("optimize", [False, True])
def test_generated_programs_can_be_built(optimize: bool) -> None:
    for seed in range(100):
        case = generated(seed, optimize=optimize)
        BUILDERS["steps"](case["params"]).build(settings_for(optimize)).build()


@pytest.mark.parametrize("is_continuous", [False, True], ids=["batches", "continuous"])
@pytest.mark.parametrize("seed", range(4))
def test_generated_programs_answer_on_the_embedded_engine_as_in_the_test_driver(
    seed: int, *, is_continuous: bool
) -> None:
    case = generated_case(f"steps/{seed}", random.Random(seed), verbs=6, inputs=8, optimize=seed % 2 == 1)
    case["expected"] = {"outputs": []}
    answers = []
    for made in (TestDriver, partial(CaseDriver, step=partial(stepping_embedded, is_continuous=is_continuous))):
        driver = made(case)
        try:
            # The order of records of one topic counts.
            case["expected"]["outputs"] = play(case, driver)["outputs"]
        finally:
            driver.close()
        answers.append(sorted(case["expected"]["outputs"], key=lambda each: (each["op"], each["topic"])))
    assert answers[0] and answers[1] == answers[0]


@needs_recorder
def test_generated_programs_have_kafka_streams_names() -> None:
    cases = [
        generated_case(f"steps/{seed}", random.Random(seed), verbs=8, inputs=0, optimize=optimize)
        for seed in range(60)
        for optimize in (False, True)
    ]
    assert differences(cases) == []


@needs_recorder
def test_the_recorded_cases_can_be_recorded_again() -> None:
    cases = [case for case in load(Path(__file__).parent / "vectors")[0] if case["topology"] == "steps"]
    assert [found.get("expected") for found in recorded(cases)] == [case["expected"] for case in cases]
