"""Soak: many histories of a program, one for each seed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from .contract import SimulationContract, in_memory
from .failure import SimulationFailure
from .faults import Place


@dataclass
class Soaked:
    """What a soak ran: histories, events, how often each fault struck, and where. `failure` ended it, at `seed`."""

    histories: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    places: Counter[Place] = field(default_factory=Counter)
    seed: int = 0
    failure: SimulationFailure | None = None

    def add(self, other: Soaked) -> None:
        """Count what another one ran, too."""
        self.histories += other.histories
        self.events += other.events
        self.faults.update(other.faults)
        self.places.update(other.places)
        self.seed, self.failure = other.seed, other.failure


def soak(
    contract: type[SimulationContract],
    seeds: Sequence[int],
    progress: Callable[[Soaked], None] = lambda soaked: None,
    *,
    jobs: int = 1,
) -> Soaked:
    """Run the history of each seed until one fails, in `jobs` processes. `progress` is called after each.

    The same seed makes the same history. Seeds take turns between continuous mode and batches.
    """
    soaked = Soaked()
    for each in _played(contract, seeds) if jobs == 1 else _played_by(jobs, contract, seeds):
        soaked.add(each)
        if each.failure is not None:
            break
        progress(soaked)
    return soaked


def _played(contract: type[SimulationContract], seeds: Sequence[int]) -> Iterator[Soaked]:
    """Yield what each history came to; the one that fails is the last."""
    with _quiet(), in_memory():
        for seed in seeds:
            try:
                simulation = contract.play(seed)
            except SimulationFailure as failure:
                shortest = contract.shortest(seed, failure) if contract.shrinks else failure
                yield Soaked(seed=seed, failure=shortest)
                return
            yield Soaked(1, simulation.events, Counter(simulation.faults), Counter(simulation.places), seed)


def _played_by(jobs: int, contract: type[SimulationContract], seeds: Sequence[int]) -> Iterator[Soaked]:
    """Yield the same, of processes that share the seeds."""
    context = get_context("fork")  # the contract may be of a file, and the product changed by a planted fault
    results: Any = context.SimpleQueue()

    def work(number: int) -> None:
        # Neighbours go to one process, so that each has both modes.
        for each in _played(contract, [seed for at, seed in enumerate(seeds) if at // 2 % jobs == number]):
            results.put(each)
        results.put(None)

    processes = [context.Process(target=work, args=(number,), daemon=True) for number in range(jobs)]
    for each in processes:
        each.start()
    try:
        at_work = jobs
        while at_work:
            found = results.get()
            if found is None:
                at_work -= 1
            else:
                yield found
    finally:
        for each in processes:
            each.terminate()
            each.join()


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
