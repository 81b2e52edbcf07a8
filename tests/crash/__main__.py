"""`python -m tests.crash --log local --rounds N --seed S`: exit 0 only if nothing was lost, duplicated or wrong."""

from __future__ import annotations

import argparse
import signal
import sys

from .harness import run


def main(arguments: list[str] | None = None) -> int:
    """Kill and restart an application, and compare with an undisturbed run."""
    parser = argparse.ArgumentParser("python -m tests.crash", description=main.__doc__)
    parser.add_argument("--log", choices=("local", "kafka"), default="local", help="which log the application uses")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.log != "local":
        parser.error("this version of penstock has no Kafka log yet; use --log local")
    # A harness that is told to end takes the application with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    tally = run(given.rounds, given.seed, lambda line: print(line, flush=True))
    for problem in tally.wrong[:20]:
        print(f"WRONG: {problem}")
    print(f"rounds {tally.rounds} lost {tally.lost} duplicated {tally.duplicated} wrong {len(tally.wrong)}")
    return 0 if tally.passed else 1


if __name__ == "__main__":
    sys.exit(main())
