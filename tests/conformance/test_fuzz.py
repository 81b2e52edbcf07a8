"""Generated programs can be built; and what Kafka Streams says of them, where its jars are on this machine."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from penstock.plugins.engine.run.embedded import stepping_embedded

from .comparing import BEHIND_PROCESS, ORDER, REFUSED, SEGMENTS, STALE_ANSWERS, compared
from .differences import DeletedSelfJoins, OptimisedSelfJoins, RowsSentBefore
from .fuzz import Step, generated_case, main
from .language import mapper, settings_for
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
    assert [each for each in compared(cases) if not each.listed] == []


STEPS = f"{__package__}.steps"
STREAM: Step = {"op": "stream", "topic": "in"}
REKEYED: Step = {"op": "select_key", "of": 0, "sel": "first_char"}
TAGGED: Step = {"op": "process_values", "of": 1}
SELF_JOIN: list[Step] = [
    STREAM,
    {"op": "map_values", "of": 0, "fn": "upper"},
    {"op": "join", "of": [1, 1], "type": "inner", "diff": 0, "grace": 4},
    {"op": "to", "of": 2, "topic": "out"},
]
COUNT: Step = {"op": "aggregate", "group": "key", "agg": "count"}
LISTED: list[tuple[tuple[str, ...], bool, list[Step]]] = [
    ((REFUSED,), True, [STREAM, REKEYED, TAGGED, COUNT | {"of": 2}, COUNT | {"of": 2}, COUNT | {"of": 1}]),
    ((BEHIND_PROCESS,), True, [STREAM, REKEYED, {"op": "process", "of": 1}, COUNT | {"of": 2}, COUNT | {"of": 1}]),
    ((SEGMENTS,), False, SELF_JOIN),
    ((OptimisedSelfJoins.reason,), True, SELF_JOIN),
    (
        (DeletedSelfJoins.reason,),
        False,
        [
            {"op": "table", "topic": "in"},
            {"op": "map_values", "of": 0, "fn": "upper"},
            {"op": "join", "of": [0, 1], "type": "inner"},
            {"op": "to_stream", "of": 2},
            {"op": "to", "of": 3, "topic": "out"},
        ],
    ),
    (
        (RowsSentBefore.reason,),
        False,
        [
            STREAM,
            COUNT | {"of": 0},
            {"op": "group_table", "of": 1, "group": "value"},
            {"op": "to_stream", "of": 2},
            {"op": "to", "of": 3, "topic": "out"},
        ],
    ),
    (
        (STALE_ANSWERS,),
        False,
        [
            {"op": "table", "topic": "in"},
            {"op": "map_values", "of": 0, "fn": "upper"},
            {"op": "join", "of": [0, 0], "type": "inner", "fk": "first_char"},
            {"op": "to_stream", "of": 2},
            {"op": "to", "of": 3, "topic": "out"},
            {"op": "to_stream", "of": 1},
            {"op": "to", "of": 5, "topic": "out-1"},
        ],
    ),
    (
        (ORDER,),
        False,
        [
            STREAM,
            {"op": "map_values", "of": 0, "fn": "upper"},
            {"op": "select_key", "of": 1, "sel": "first_char"},
            {"op": "cogroup", "of": [2, 2], "groups": ["key", "first_char"], "name": "c"},
            {"op": "to_stream", "of": 3},
            {"op": "to", "of": 4, "topic": "out"},
        ],
    ),
]  # fmt: skip


def listed_case(optimize: bool, steps: list[Step]) -> Case:
    made: Case = {"name": "steps/listed", "family": "steps", "topology": "steps", "params": {"steps": steps}}
    made["config"] = {"optimize": optimize, "cache_max_bytes": 0}
    records = [("A", "A", 10), ("A", None, 11), ("A", "ab", 20), ("A", "y", 17), ("A", "x", 1)]
    made["inputs"] = [{"op": "pipe", "topic": "in", "key": key, "value": value, "ts": ts} for key, value, ts in records]
    return made


@needs_recorder
def test_a_listed_difference_is_proved_and_none_excuses_another(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [listed_case(optimize, made) for _, optimize, made in LISTED]
    names = [{**case, "name": f"steps/{number}"} for number, case in enumerate(cases)]
    assert {each.name: each.listed for each in compared(names)} == {
        case["name"]: reasons for case, (reasons, _, _) in zip(names, LISTED, strict=True)
    }
    monkeypatch.setattr(f"{STEPS}.mapper", lambda spec: lambda key, value: f"{mapper(spec)(key, value)}!")
    assert [each.listed for each in compared(names[-1:])] == [()]


@needs_recorder
def test_the_command_fails_for_what_is_not_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--seed", "44201", "--programs", "4", "--inputs", "8"]
    assert main(arguments) == 0
    assert "8 cases, 0 differ, " in capsys.readouterr().out
    monkeypatch.setattr(f"{STEPS}.text", lambda value: "wrong")
    assert main(arguments) == 1


@needs_recorder
def test_the_recorded_cases_can_be_recorded_again() -> None:
    cases = [case for case in load(Path(__file__).parent / "vectors")[0] if case["topology"] == "steps"]
    assert [found.get("expected") for found in recorded(cases)] == [case["expected"] for case in cases]
