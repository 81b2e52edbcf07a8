"""Resets and moves of a changelog between the starts of a simulated application, killed at each of their operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from penstock import Record
from penstock.plugins.testing.simulation.contract import in_memory, soak
from penstock.plugins.testing.simulation.history import Fault, History, Step
from penstock.plugins.testing.simulation.simulation import Simulation
from penstock.testing.simulation import SimulationFailure

from .planted import PLANTED, planted
from .programs import SERDES, contract, counts, regrouped
from .unordered import counts_of_groups

pytestmark = pytest.mark.usefixtures("_in_memory")
RECORDS = [Record(key, 1, at) for at, key in enumerate(("ann", "bob", "ann", "cid", "ann", "bob"))]
WORK = tuple(Step("rest", host) for host in (0, 1, 0, 1))
BEFORE = (*[Step("arrive")] * 4, *WORK)


@pytest.fixture(scope="module")
def _in_memory() -> Iterator[None]:
    with in_memory():
        yield


def run(step: Step, fault: Fault, mode: str, changelog: str, program: object = counts) -> Simulation:
    """Let half of the records be processed, then do the step in which the fault strikes, then the rest."""
    history = History((*BEFORE, Step("strike", fault=fault), step, *WORK), rest_arrives=True)
    made = program()  # type: ignore[operator]
    simulation = Simulation(made, {"in": RECORDS}, history, mode=mode, changelog=changelog, **SERDES)
    with closing(simulation):
        simulation.run()
        simulation.ended = simulation.outputs()  # type: ignore[attr-defined]
    return simulation


def killed_everywhere(
    step: Step, name: str, mode: str, changelog: str, program: object = counts
) -> Iterator[Simulation]:
    """Yield the histories in which an operator dies at each of the step's operations, and one in which it does not."""
    for later in count():
        simulation = run(step, Fault("dies", step=name, later=later), mode, changelog, program)
        yield simulation
        if not any("operator 1 dies" in line or "operator 2 dies" in line for line in simulation.story):
            return


def numbers(outputs: dict[str, list[Record]]) -> dict[str, list[int]]:
    """Return the answers by key."""
    found: dict[str, list[int]] = {}
    for record in outputs["out"]:
        found.setdefault(record.key, []).append(record.value)
    return found


ALL = {"ann": [1, 2, 3], "bob": [1, 2], "cid": [1]}


@pytest.mark.parametrize("changelog", ["topic:", "memory:", "directory:"])
@pytest.mark.parametrize("mode", ["batches", "continuous"])
def test_a_reset_that_is_killed_has_happened_or_not(mode: str, changelog: str) -> None:
    happened = set()
    for again in (0, 1):
        for simulation in killed_everywhere(Step("reset", amount=again), "reset", mode, changelog):
            assert numbers(simulation.ended) == ALL  # type: ignore[attr-defined]
            happened.add((again, len(simulation.lives)))
            for before in simulation.lives:
                assert numbers(before) == {"ann": [1, 2], "bob": [1], "cid": [1]}
    assert happened == {(0, 0), (0, 1), (1, 1)}


def test_a_reset_drops_what_waits_in_internal_topics() -> None:
    for simulation in killed_everywhere(Step("reset"), "reset", "batches", "topic:", regrouped):
        assert simulation.ended["out"][-1].value == len(RECORDS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("program", [counts, regrouped])
def test_what_a_host_commits_during_a_reset_is_of_the_former_life(program: Callable[[], Any]) -> None:
    """It was frozen, and wakes between two steps of the reset, which is killed at its main step."""
    freezes = Step("strike", fault=Fault("freezes", "fetches"))
    killed = Step("strike", fault=Fault("dies", "sets", after=True, step="reset"))
    woke = 0
    for amount in range(0, 16, 2):
        steps = (*BEFORE, freezes, Step("arrive"), *WORK, killed, Step("reset", 1, amount), *WORK)
        history = History(steps, rest_arrives=True)
        with closing(Simulation(program(), {"in": RECORDS}, history, mode="continuous", **SERDES)) as simulation:
            simulation.run()
            woke += "wakes" in "\n".join(simulation.story).partition("the application was reset")[0]
            answers = simulation.outputs()
            assert numbers(answers) == ALL if program is counts else answers["out"][-1].value == len(RECORDS)
    assert woke > 1


def test_a_reset_that_deletes_state_before_it_sets_positions_is_found() -> None:
    with planted(PLANTED["a reset deletes the state before it sets the positions"]), pytest.raises(SimulationFailure):
        list(killed_everywhere(Step("reset"), "reset", "batches", "directory:"))


def test_a_reset_that_leaves_positions_in_internal_topics_is_found() -> None:
    with planted(PLANTED["a reset leaves the positions of internal topics"]), pytest.raises(AssertionError):
        test_a_reset_drops_what_waits_in_internal_topics()


@pytest.mark.parametrize("place", ["directory:", "directory:s3://bucket/of mine"])
def test_a_move_of_the_changelog_that_is_killed_is_repeated(place: str) -> None:
    for moved, simulation in enumerate(killed_everywhere(Step("move"), "move of the changelog", "batches", place)):
        assert numbers(simulation.ended) == ALL, moved  # type: ignore[attr-defined]
    assert moved > 10


@pytest.mark.parametrize("mode", ["batches", "continuous"])
def test_a_host_that_was_frozen_before_a_fence_over_a_move_changes_nothing(mode: str) -> None:
    """It takes the fence after the move, and would commit to the old place; the next host finds nothing of it there."""

    def play() -> str:
        freezes = Step("strike", host=1, fault=Fault("freezes", "takes"))
        late = (Step("give", host=1), freezes, Step("rest", 1), Step("move"), Step("arrive"), Step("wake"))
        history = History((*BEFORE, Step("arrive"), *late, Step("stop"), *WORK), rest_arrives=True)
        given = {"mode": mode, "changelog": "directory:", **SERDES}
        with closing(Simulation(counts(), {"in": RECORDS}, history, **given)) as simulation:
            simulation.run()
            assert numbers(simulation.outputs()) == ALL
            return "\n".join(simulation.story)

    assert "host 2 takes the fence of task 0_0" in play().partition("wakes")[2]
    with planted(PLANTED["a task is opened in an earlier epoch"]), pytest.raises(SimulationFailure):
        play()


def test_equal_keys_have_equal_bytes_or_the_history_fails() -> None:
    soaked = soak(contract(program=counts_of_groups("pickle"), shrinks=False), range(10, 30))
    assert soaked.failure is not None
