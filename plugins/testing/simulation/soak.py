"""Soak: many histories of a program, one for each seed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.plugins.runtime.temporary import TemporaryDirectory

from .contract import SimulationContract
from .failure import SimulationFailure


@dataclass
class Soaked:
    """What a soak ran: histories, their events, and how often each fault struck. `failure` ended it, at `seed`."""

    histories: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    seed: int = 0
    failure: SimulationFailure | None = None


def soak(
    contract: type[SimulationContract], seeds: Iterable[int], progress: Callable[[Soaked], None] = lambda soaked: None
) -> Soaked:
    """Run the history of each seed until one fails. `progress` is called after each.

    The same seed makes the same history. Seeds take turns between continuous mode and batches.
    """
    soaked = Soaked()
    with _quiet(), TemporaryDirectory("simulation") as directory:
        for soaked.seed in seeds:
            try:
                simulation = contract.play(soaked.seed, directory)
            except SimulationFailure as failure:
                soaked.failure = contract.shortest(soaked.seed, failure, directory) if contract.shrinks else failure
                return soaked
            soaked.histories += 1
            soaked.events += simulation.events
            soaked.faults.update(simulation.faults)
            progress(soaked)
    return soaked


@contextmanager
def _quiet() -> Iterator[None]:
    """Write no log lines: hosts that die and wake warn of each other."""
    logger = logging.getLogger("penstock")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
