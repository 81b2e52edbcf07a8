"""Backups and resharding in histories: what is restored and divided is right, and planted faults are found."""

from __future__ import annotations

import pytest

from penstock.plugins.testing.simulation.backups import BackupSimulation
from penstock.plugins.testing.simulation.reshards import ReshardSimulation
from penstock.plugins.testing.simulation.soak import soak

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
)
"""The planted faults that a few seeds show."""
_SEEDS = 16


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


def test_histories_have_reshards() -> None:
    simulation = next(iter(RESHARDS.values())).play(1)
    assert isinstance(simulation, ReshardSimulation) and simulation.reshards == 2


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_fault_is_found(name: str) -> None:
    fault = STATE_PLANTED[name]
    contract = type("Planted", (CONTRACTS[fault.program],), {"shrinks": False})
    with planted(fault):
        assert soak(contract, range(_SEEDS)).failure is not None
