"""`python -m tests.simulate --seeds N --start S`: histories of every program, and how often each fault struck where;
`--hunt`: the first seed that finds each planted fault."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import perf_counter

from penstock.plugins.testing.simulation.contract import Soaked, soak
from penstock.plugins.testing.simulation.faults import Place
from penstock.plugins.testing.simulation.history import COPY_FAULTS, DISK_FAULTS, LOG_FAULTS, OVERTAKEN

from .branches import counts_of_missed, listed, reached_by, report, unknown
from .planted import PLANTED as OF_TASKS
from .planted import planted
from .programs import CONTRACTS as PROGRAMS
from .state_planted import STATE_PLANTED
from .state_programs import CONTRACTS as STATE_PROGRAMS

CONTRACTS, PLANTED = {**PROGRAMS, **STATE_PROGRAMS}, {**OF_TASKS, **STATE_PLANTED}
NEVER = "NEVER"
_OF_LOG = {"asks", "commits", "ends", "fetches", "notes", "produces", "purges", "removes", "sends", "sets", "takes"}
"""The operations on the log; the others are on the disk, but for `_OF_COPY`."""
_OF_COPY = "keeps"
"""The operation on local state."""
_MANY = 2_000
"""So many histories of all programs have to have had every fault at every operation of every step."""


def main(arguments: list[str] | None = None) -> int:
    """Run the histories of seeds for programs with every kind of store; exit 0 only if all are as without faults."""
    parser = argparse.ArgumentParser("python -m tests.simulate", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many histories of each program (100)")
    parser.add_argument("--start", type=int, default=1, help="the first seed (1)")
    parser.add_argument(
        "--program", action="append", choices=sorted(CONTRACTS), help="only this program; may be given several times"
    )
    parser.add_argument("--jobs", type=int, default=1, help="in how many processes (1)")
    parser.add_argument("--planted", choices=sorted(PLANTED), help="with this fault in the product, and its program")
    parser.add_argument(
        "--hunt",
        action="store_true",
        help="look for all planted faults, or --planted, in --seeds histories each",
    )
    parser.add_argument(
        "--coverage",
        action="store_true",
        help="report the branches of the engine that no history reaches; fail for those that unreached.toml does not "
        "list. In one process",
    )
    given = parser.parse_args(arguments)
    if given.hunt:
        return _hunt([given.planted] if given.planted else list(PLANTED), given.start, given.seeds, given.jobs)
    fault = PLANTED[given.planted] if given.planted else None
    names = [fault.program] if fault else given.program or list(CONTRACTS)
    soaked = Soaked()

    def run() -> None:
        # Each program has seeds of its own: with the same ones the same faults would strike all of them.
        for number, name in enumerate(names):
            start = given.start + number * given.seeds
            _soak(name, range(start, start + given.seeds), 1 if given.coverage else given.jobs, soaked)

    wrong = 0
    with planted(fault) if fault else nullcontext():
        if given.coverage:
            wrong = _covered(run)
        else:
            run()
    for what, count in sorted(soaked.faults.items()):
        print(f"{count:8} {what}")
    lines = table(soaked.places)
    print("\n".join(lines))
    never = sum(NEVER in line for line in lines) if names == list(CONTRACTS) and soaked.histories >= _MANY else 0
    if never:
        print(f"{never} operations which some fault did not strike in {soaked.histories} histories")
    return int(bool(never or wrong) or soaked.failure is not None)


def _covered(run: Callable[[], None]) -> int:
    """Print which branches `run` should have reached, or the list should have; return how many there are."""
    found, known, rare = reached_by(run), listed(), listed("rare")
    gone = unknown(found, {**known, **rare})
    wrong = [*report(found, known, rare), *(f"listed, and not in the source: {each}" for each in gone)]
    print("\n".join(wrong))
    print(f"{len(found.reached)} branches reached; missed: {counts_of_missed(found)}; wrong: {len(wrong)}")
    return len(wrong)


def _hunt(names: Sequence[str], start: int, count: int, jobs: int) -> int:
    """Print the first seed that finds each planted fault, from `start` on; return 1 if one is not found."""
    missed = 0
    for name in names:
        contract = CONTRACTS[PLANTED[name].program]
        began, unshrunk = perf_counter(), type(contract.__name__, (contract,), {"shrinks": False})
        with planted(PLANTED[name]):
            soaked = soak(unshrunk, range(start, start + count), jobs=jobs)
        missed += soaked.failure is None
        found = f"seed {soaked.seed}" if soaked.failure is not None else "NOT FOUND"
        print(f"{found} after {soaked.histories} histories, {perf_counter() - began:.0f} s: {name}", flush=True)
    return int(missed > 0)


def _soak(name: str, seeds: range, jobs: int, total: Soaked) -> None:
    began = perf_counter()
    soaked = soak(CONTRACTS[name], seeds, jobs=jobs)
    rate = soaked.histories / (perf_counter() - began)
    print(f"{name}: {soaked.histories} histories, {soaked.events} events, {rate:.1f} a second", flush=True)
    failed = total.failure
    total.add(soaked)
    total.failure = total.failure or failed
    if soaked.failure is not None:
        print(f"seed {soaked.seed}: {soaked.failure}", flush=True)


def table(places: Counter[Place]) -> list[str]:
    """Return a line for each operation of each step: how often it was done, and how often each fault struck there."""
    lines = []
    for step, operation in sorted({(place.step, place.operation) for place in places}):
        kinds = LOG_FAULTS if operation in _OF_LOG else tuple(kind for kind in DISK_FAULTS if kind != OVERTAKEN)
        kinds = COPY_FAULTS if operation == _OF_COPY else kinds
        struck = {
            kind: sum(places[Place(step, operation, f"{kind} {when}")] for when in ("before", "after"))
            for kind in kinds
        }
        marks = ", ".join(f"{kind} {count or NEVER}" for kind, count in struck.items())
        lines.append(f"{step}, {operation} ({places[Place(step, operation)]}): {marks}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
