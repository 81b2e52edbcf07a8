"""`python -m tests.simulate --seeds N --start S`: histories of every program, and how often each fault struck."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import nullcontext
from time import perf_counter

from penstock.plugins.testing.simulation.soak import soak

from .planted import PLANTED, planted
from .programs import CONTRACTS


def main(arguments: list[str] | None = None) -> int:
    """Run the histories of seeds for programs with every kind of store; exit 0 only if all are as without faults."""
    parser = argparse.ArgumentParser("python -m tests.simulate", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many histories of each program (100)")
    parser.add_argument("--start", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--program", choices=sorted(CONTRACTS), help="only this program")
    parser.add_argument("--jobs", type=int, default=1, help="in how many processes (1)")
    parser.add_argument("--planted", choices=sorted(PLANTED), help="with this fault in the product, and its program")
    given = parser.parse_args(arguments)
    fault = PLANTED[given.planted] if given.planted else None
    names = [fault.program] if fault else [given.program] if given.program else list(CONTRACTS)
    faults, failed = Counter[str](), False
    for name in names:
        began = perf_counter()
        with planted(fault) if fault else nullcontext():
            soaked = soak(CONTRACTS[name], range(given.start, given.start + given.seeds), jobs=given.jobs)
        rate = soaked.histories / (perf_counter() - began)
        print(f"{name}: {soaked.histories} histories, {soaked.events} events, {rate:.1f} a second", flush=True)
        faults += soaked.faults
        if soaked.failure is not None:
            failed = True
            print(f"seed {soaked.seed}: {soaked.failure}", flush=True)
    for what, count in sorted(faults.items()):
        print(f"{count:8} {what}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
