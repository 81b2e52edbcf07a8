"""The verb `simulate`: histories of crashes of a program, from seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .command import verb, verbose_option
from .output import note, print_text

if TYPE_CHECKING:
    from penstock.plugins.testing.simulation.contract import Soaked


@verb(
    ("A thousand histories", "penstock simulate tests/test_orders.py:TestOrders --seeds 1000"),
    ("A hundred thousand in two processes", "penstock simulate tests/test_orders.py:TestOrders --seeds 100000 --jobs 2"),
    ("The history of one seed once more", "penstock simulate tests/test_orders.py:TestOrders --start 417 --seeds 1"),
)  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, help="How many histories to run.")
@click.option("--start", type=click.IntRange(0), default=1, show_default=True, help="The first seed.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="In how many processes.")
@verbose_option
def simulate(target: str, seeds: int, start: int, jobs: int) -> None:
    """Run a program on simulated hosts that die, freeze and lose tasks, one history for each seed.

    MODULE is a module or the path of a Python file; ATTR is a class of tests derived from
    penstock.testing.simulation.SimulationContract. The same seed makes the same history. The first history that fails
    ends it with exit code 1: it is printed, a line for each event, with the command that runs it again.
    """
    from time import perf_counter

    from penstock import PenstockError
    from penstock.plugins.testing.simulation import SimulationContract
    from penstock.plugins.testing.simulation.contract import soak

    from .failures import ApplicationError
    from .target import load_function

    contract = load_function(target)
    if not (isinstance(contract, type) and issubclass(contract, SimulationContract)):
        raise ApplicationError(f"{target} is no subclass of penstock.testing.simulation.SimulationContract")
    began = said = perf_counter()

    def say(soaked: Soaked) -> None:
        nonlocal said
        if (now := perf_counter()) >= said + 5.0:
            said = now
            note(_rate(soaked, now - began))

    soaked = soak(contract, range(start, start + seeds), say, jobs=jobs)
    if soaked.failure is not None:
        again = f"penstock simulate {target} --start {soaked.seed} --seeds 1"
        raise PenstockError(f"seed {soaked.seed}: {soaked.failure}\nThe same history again: {again}")
    print_text(_rate(soaked, perf_counter() - began))
    for fault, count in sorted(soaked.faults.items()):
        print_text(f"  {count:8} {fault}")


def _rate(soaked: Soaked, seconds: float) -> str:
    histories, events = soaked.histories, soaked.events
    return f"{histories} histories, {events} events, {histories / seconds:.1f} histories a second: none failed"
