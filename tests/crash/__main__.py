"""`python -m tests.crash --log local|kafka --rounds N --seed S`: exit 0 only if nothing was lost, repeated, wrong or
left behind."""

from __future__ import annotations

import argparse
import logging
import signal
import sys

from . import operator
from .faults import FAULTS
from .harness import Options, run
from .plugin import BACKENDS
from .programs import PROGRAMS


def main(arguments: list[str] | None = None) -> int:
    """Strike an application with faults while it works, and judge what it leaves."""
    parser = argparse.ArgumentParser("python -m tests.crash", description=main.__doc__)
    parser.add_argument("--log", choices=("local", "kafka"), default="local", help="which log the application uses")
    parser.add_argument(
        "--program",
        choices=[*sorted(PROGRAMS), "operator"],
        default="processor",
        help="which program it runs (processor); operator: `transform` on executors, by --rounds and --seed",
    )
    parser.add_argument("--rounds", type=int, default=20, help="how many faults (20)")
    parser.add_argument("--minutes", type=float, help="as many rounds as fit into this time, in place of --rounds")
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults and their moments (1)")
    parser.add_argument(
        "--guarantee",
        choices=("exactly_once", "at_least_once"),
        default="exactly_once",
        help="at_least_once, on Kafka only: nothing may be lost",
    )
    parser.add_argument("--mode", choices=("batch", "continuous"), default="batch", help="how its tasks run (batch)")
    parser.add_argument(
        "--engine",
        choices=("spark", "embedded", "both"),
        default="spark",
        help="what runs it; both: each start is on the other one (spark)",
    )
    parser.add_argument(
        "--changelog", choices=("directory", "topic"), default="directory", help="where history is kept"
    )
    parser.add_argument(
        "--fault", choices=sorted(FAULTS), action="append", default=[], help="only this fault; repeatable"
    )
    parser.add_argument(
        "--store-backend", choices=sorted(BACKENDS), default="lmdb", help="what keeps local state (lmdb)"
    )
    parser.add_argument(
        "--brokers", type=int, default=1, help="how many Kafka brokers; inputs of a task are led by different ones (1)"
    )
    given = parser.parse_args(arguments)
    # A harness that is asked to end takes the application with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    if given.program == "operator":
        found = operator.run(given.rounds, given.seed, lambda line: print(line, flush=True))
        print(found)
        return 0 if found.verdict.is_good else 1
    if given.log == "local" and given.guarantee != "exactly_once":
        parser.error("the local log always commits exactly once")
    if given.program == "dsl" and (given.guarantee != "exactly_once" or {"lose offsets", "go back"} & {*given.fault}):
        parser.error("the program 'dsl' is judged exactly once, and not with lost offsets or restored backups")
    options = Options(
        given.log, given.rounds, given.seed, given.guarantee, given.changelog, given.minutes, tuple(given.fault),
        given.program, given.mode, given.store_backend, given.brokers, given.engine,
    )  # fmt: skip
    # That the broker is away is no news.
    logging.getLogger("penstock.kafka").setLevel(logging.CRITICAL)
    tally = run(options, lambda line: print(line, flush=True))
    for problem in tally.verdict.wrong[:20]:
        print(f"WRONG: {problem}")
    print(tally)
    return 0 if tally.passed else 1


if __name__ == "__main__":
    sys.exit(main())
