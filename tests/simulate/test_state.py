"""Backups and resharding in histories: what is restored and divided is right, and planted faults are found."""

from __future__ import annotations

import pytest

from penstock import Record
from penstock.plugins.testing.simulation.contract import Case, in_memory, soak
from penstock.plugins.testing.simulation.history import Fault, History, Step
from penstock.plugins.testing.simulation.transfers import BackupSimulation, ReshardSimulation

from ..rotation import of_today
from .planted import planted
from .state_planted import STATE_PLANTED
from .state_programs import BACKUPS, CONTRACTS, RESHARDS

FOUND = (
    "a backup overlooks records that are on their way",
    "a restored task reads on where the former topic was",
    "how far a visit is does not go with the commit",
    "a process that reshards, and was frozen, switches after its successor",
    "a resharding overlooks records that are on their way",
    "a resharding that is repeated takes other ends",
    "a resharded application begins at the start of its topics",
    "windows close before the records that wait",
    "windows do not close in silence",
)
"""The planted faults that a few seeds show."""
_SEEDS = 16
_FEW_SNAPSHOTS = 4
"""The dice of a history whose backups are written as deltas."""


@pytest.mark.parametrize("name", of_today(list(CONTRACTS), 3))
def test_a_program_answers_as_without_faults(name: str) -> None:
    soaked = soak(CONTRACTS[name], range(4))
    assert soaked.failure is None, f"seed {soaked.seed}: {soaked.failure}"


def test_histories_have_backups_that_are_restored() -> None:
    made = restored = 0
    for seed in range(5):
        simulation = next(iter(BACKUPS.values())).play(seed)
        assert isinstance(simulation, BackupSimulation)
        made, restored = made + len(simulation.made), restored + sum(map(bool, simulation.restored.values()))
    assert made > 4 and restored > 1


def played(program: str, *steps: Step, dice: int = _FEW_SNAPSHOTS) -> BackupSimulation:
    """Run a history of these steps, with three records of a key, in the continuous mode."""
    records = {"in": tuple(Record("ann", value, value) for value in range(3))}
    with in_memory():
        found = BACKUPS[f"{program}, with backups, changelog topic:"]._play_case(
            Case(records, History(steps, dice=dice)), "continuous"
        )
    assert isinstance(found, BackupSimulation)
    return found


def test_a_backup_does_not_lose_a_record_that_is_processed_and_deleted_while_it_is_made() -> None:
    freezes = Step("strike", fault=Fault("freezes", "makes", step="backup"))
    purge = Step("arrive"), Step("rest"), Step("purge", amount=1)
    simulation = played("passed on", freezes, Step("backup", 0, 3), *[Step("wake")] * 2, *purge, *[Step("wake")] * 9)
    assert "cannot be restored, because records are deleted" in simulation.story[-1]


def test_a_backup_that_could_not_read_its_place_leaves_the_others_whole() -> None:
    work, back_up = (Step("arrive"), Step("rest")), [Step("backup", amount=each) for each in (3, 0, 0, 0) * 2]
    failed = 0
    for later in range(18):
        refused = Step("strike", fault=Fault("is refused by its disk", "reads", step="backup", later=later))
        simulation = played("counts", *work, *back_up, *work, *back_up, refused, *back_up * 3)
        failed += len(simulation.failed)
        assert simulation.restored
    assert failed > 5


def test_a_backup_makes_durable_what_one_that_failed_has_left() -> None:
    fault = Fault("is refused by its disk", "completes", step="backup", after=True)
    back_up = [Step("backup", amount=amount) for amount in (3, 0, 0, 0) * 4]
    for dice in range(8):
        simulation = played("counts", Step("arrive"), Step("rest"), Step("strike", fault=fault), *back_up, dice=dice)
        assert simulation.failed and simulation.made


def test_a_history_that_failed_once_is_right() -> None:
    """A backup had been given up; the crash of a machine brought its entry back, without the files."""
    BACKUPS["passed on, with backups, changelog topic:"].play(815787)


def test_histories_have_reshards() -> None:
    simulation = next(iter(RESHARDS.values())).play(1)
    assert isinstance(simulation, ReshardSimulation) and simulation.reshards == 2


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_fault_is_found(name: str) -> None:
    fault = STATE_PLANTED[name]
    contract = type("Planted", (CONTRACTS[fault.program],), {"shrinks": False})
    with planted(fault):
        assert soak(contract, range(_SEEDS)).failure is not None
