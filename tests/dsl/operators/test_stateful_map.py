"""`stateful_map`: results and states as plain Python has them, whatever the functions change in place."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Application, TopologyError, key_value_store, skip, window_store
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver
from tests.dsl.interleaving import InterleavingDriver

VALUES = st.none() | st.integers(0, 4) | st.lists(st.integers(0, 2), max_size=2)
STEPS = st.lists(st.tuples(st.sampled_from("abc"), VALUES), max_size=20)


def collect(state: list[Any], value: Any) -> tuple[Any, Any]:
    """Return the state itself as the result; a 4 ends the state, a 3 has no result."""
    state.append(value)
    return (None if value == 4 else state), (None if value == 3 else state)


def mark(value: Any) -> Any:
    if isinstance(value, list):
        value.append("marked")
    return value


def collected(steps: list[tuple[str, Any]]) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """Return what `collect` answers, marked, and the states."""
    states: dict[str, list[Any]] = {}
    results = []
    for key, value in steps:
        state = [*states.pop(key, []), value]
        if value != 4:
            states[key] = state
        results.append((key, None if value == 3 else [*state, "marked"]))
    return results, states


@pytest.mark.parametrize("reopen", [False, True], ids=["", "reopened"])
@given(STEPS)
def test_results_are_those_of_plain_python(reopen: bool, steps: list[tuple[str, Any]]) -> None:
    nothing: list[Any] = []
    builder = StreamsBuilder()
    mapped = builder.stream("in", value_serde="json").stateful_map(collect, lambda: nothing, "kept")
    mapped.map_values(mark).to("out", value_serde="json")
    mapped.to("beside", value_serde="json")
    results, states = collected(steps)
    with TopologyTestDriver(builder, reopen_tasks=reopen) as driver:
        driver.pipe_many("in", steps)
        assert driver.read_pairs("out") == results
        assert [value if value is None else [*value, "marked"] for value in driver.read_values("beside")] == [
            value for _, value in results
        ]
        assert dict(driver.store("kept").all()) == states and nothing == []


@given(STEPS, st.integers())
def test_behind_other_keys_each_key_has_one_state(steps: list[tuple[str, Any]], seed: int) -> None:
    builder = StreamsBuilder()
    moved = builder.stream("in", value_serde="json").select_key(lambda key, value: key, with_key=True)
    moved.stateful_map(collect, list, "kept").map_values(mark).to("out", value_serde="json")
    expected: dict[str, list[Any]] = {}
    for key, value in collected(steps)[0]:
        expected.setdefault(key, []).append(value)
    with InterleavingDriver(
        Application("app", builder), random.Random(seed), partitions={"app-kept-repartition": 3}
    ) as driver:
        driver.pipe_many("in", steps)
        driver.finish()
        found: dict[str, list[Any]] = {}
        for key, value in driver.read_pairs("out"):
            found.setdefault(key, []).append(value)
    assert found == expected


def test_a_failed_record_leaves_the_state() -> None:
    def fails(key: str, state: list[int], value: int) -> Any:
        state.append(value)
        return state if value == 2 else (state, 1 // value)

    builder = StreamsBuilder()
    builder.stream("in", value_serde="int").stateful_map(fails, list, "kept", with_key=True).to(
        "out", value_serde="int"
    )
    application = Application("app", builder, processing_handler=skip)
    with TopologyTestDriver(application) as driver:
        driver.pipe_many("in", [("a", 1), ("a", 0), ("a", 2), ("a", 3)])
        assert driver.store("kept").get("a") == [1, 3]


def test_a_record_without_a_key_is_dropped() -> None:
    builder = StreamsBuilder()
    builder.stream("in").stateful_map(lambda state, value: (state, value), str, "kept", name="map").to("out")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", None, "x")
        assert driver.read_all("out") == [] and driver.metrics()["map"].dropped == {"null_key": 1}


def test_states_expire() -> None:
    builder = StreamsBuilder()
    builder.stream("in").stateful_map(lambda n, value: (n + 1, str(n)), int, "kept", ttl="10s").to(
        "out", value_serde="str"
    )
    with TopologyTestDriver(builder) as driver:
        for time in (0, 9_000, 30_000):
            driver.pipe("in", "a", "x", time)
        assert driver.read_values("out") == ["0", "1", "0"]


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "function": (lambda s: s.stateful_map(len, list), r"stateful_map: its function is called with \(state, value\)"),
    "initial": (lambda s: s.stateful_map(collect, []), "stateful_map: .* first state of each key.*write list"),
    "option": (lambda s: s.stateful_map(collect, list, cached=False), "stateful_map: there is no option 'cached'"),
    "another kind": (
        lambda s: s.stateful_map(collect, list, window_store("w", retention="1s", window_size="1s")),
        "stateful_map: store 'w': expected a key_value_store",
    ),
    "timestamps": (
        lambda s: s.stateful_map(collect, list, key_value_store("w", timestamped=True)),
        "stateful_map: store 'w': expected a key_value_store of plain values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_when_the_program_is_built(case: str) -> None:
    write, message = WRONG[case]
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match=message):
        write(builder.stream("in"))
        builder.build()


def test_a_declared_store() -> None:
    builder = StreamsBuilder()
    store = key_value_store("kept", value_serde="int")
    builder.stream("in").stateful_map(lambda n, value: (n + 1, n), int, store).to("out", value_serde="int")
    with TopologyTestDriver(builder) as driver:
        driver.pipe_many("in", [("a", "x"), ("a", "y")])
        assert driver.read_values("out") == [0, 1] and driver.store("kept").get("a") == 2


def test_a_numbered_store_is_refused_with_what_to_write() -> None:
    builder = StreamsBuilder()
    builder.stream("in").stateful_map(collect, list)
    with pytest.raises(TopologyError, match=r'stateful_map\(\.\.\., store="NAME"\)'):
        Application("app", builder, explicit_internal_names=True)
