"""`python -m tests.crash --log local|kafka --rounds N --seed S`: exit 0 only if nothing was lost, duplicated or wrong."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from .harness import Harness, run
from .kafka import KafkaHarness


def main(arguments: list[str] | None = None) -> int:
    """Kill and restart an application, and compare with an undisturbed run."""
    parser = argparse.ArgumentParser("python -m tests.crash", description=main.__doc__)
    parser.add_argument("--log", choices=("local", "kafka"), default="local", help="which log the application uses")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--guarantee",
        choices=("exactly_once", "at_least_once"),
        default="exactly_once",
        help="at_least_once, on Kafka only: nothing may be lost",
    )
    parser.add_argument(
        "--changelog", choices=("directory", "topic"), default="directory", help="where history is kept"
    )
    given = parser.parse_args(arguments)
    if given.log == "local" and given.guarantee != "exactly_once":
        parser.error("the local log always commits exactly once")
    # A harness that is told to end takes the application with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    tally = run(given.rounds, maker(given.log, given.seed, given.guarantee, given.changelog))
    for problem in tally.wrong[:20]:
        print(f"WRONG: {problem}")
    print(f"rounds {tally.rounds} lost {tally.lost} duplicated {tally.duplicated} wrong {len(tally.wrong)}")
    return 0 if tally.passed else 1


def maker(log: str, seed: int, guarantee: str, changelog: str = "directory") -> Callable[[Path], Harness]:
    """Return what makes a harness in a directory."""

    def say(line: str) -> None:
        print(line, flush=True)

    if log == "kafka":
        return lambda directory: KafkaHarness(directory, seed, say, guarantee, changelog)
    return lambda directory: Harness(directory, seed, say, changelog=changelog)


if __name__ == "__main__":
    sys.exit(main())
