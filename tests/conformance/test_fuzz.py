"""Generated programs can be built; and what Kafka Streams says of them, where its jars are on this machine."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .fuzz import differences, generated_case
from .language import settings_for
from .recording import recorded, recorder_is_there
from .runner import BUILDERS, Case, load

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
