"""`python -m tests.conformance DIR`: a line per family, each failing case with its first difference, and the cases that
differ as differences.py says, with the reason; exit 0 only if all pass."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from .backlog import with_backlog
from .runner import Case, Result, TestDriver, by_family, check, check_description, load, shortened, table


def main(arguments: list[str] | None = None) -> int:
    """Run the vectors in a folder."""
    parser = argparse.ArgumentParser("python -m tests.conformance", description=main.__doc__)
    parser.add_argument("directory", type=Path, help="a folder of vector files")
    parser.add_argument("--family", action="append", default=[], help="only this family (repeatable)")
    parser.add_argument("--topology", action="append", default=[], help="only this topology (repeatable)")
    parser.add_argument(
        "--driver",
        choices=("ttd", "simulated", "spark", "local", "kafka"),
        default="ttd",
        help="what runs the cases: the test driver, simulated hosts with faults between any two inputs, or an engine "
        "with a local log (spark: local) or a broker",
    )
    parser.add_argument("--seed", type=int, default=1, help="with --driver simulated: which faults strike (1)")
    parser.add_argument("--engine", choices=("spark", "embedded"), default="spark", help="the engine (spark)")
    parser.add_argument("--mode", choices=("batch", "continuous"), default="batch", help="how tasks run (batch)")
    parser.add_argument("--sample", type=int, metavar="N", help="only N cases of each family, spread over it")
    parser.add_argument(
        "--ops", type=int, metavar="N", help="only the first N inputs of each case; the test driver must pass all of it"
    )
    parser.add_argument(
        "--backlog",
        type=int,
        metavar="N",
        help="start again for every N inputs, which wait in the log then (on Kafka, of two brokers); only cases of one "
        "task with several inputs, whose answers depend on the order of timestamps alone",
    )
    parser.add_argument("--descriptions", action="store_true", help="compare describe() instead of running")
    given = parser.parse_args(arguments)
    if given.driver == "spark":
        given.driver = "local"
    elif given.driver in ("ttd", "simulated") and given.engine != "spark":
        parser.error(f"--engine {given.engine}: add --driver local, or kafka")
    for option in ("sample", "ops", "backlog"):
        if (number := getattr(given, option)) is not None and number < 1:
            parser.error(f"--{option} {number}: expected a number from 1 on")
    if not given.directory.is_dir():
        parser.error(f"{given.directory} is not a folder")
    logging.getLogger("penstock").setLevel(logging.ERROR)
    cases, descriptions = load(given.directory)

    def wanted(family: str, topology: str) -> bool:
        return (not given.family or family in given.family) and (not given.topology or topology in given.topology)

    results: list[Result] = []
    if given.descriptions:
        chosen = [each for each in descriptions if wanted(each["case"].partition("/")[0], each["topology"])]
        results = [check_description(entry) for entry in chosen]
    else:
        chosen = [case for case in cases if wanted(case["family"], case["topology"])]
        if given.driver == "kafka":
            from .log_driver import for_kafka

            chosen = [for_kafka(case) for case in chosen]
        if given.backlog is not None:
            chosen = [made for case in chosen if (made := with_backlog(case, given.backlog)) is not None]
        if given.sample is not None:
            chosen = sample(chosen, given.sample)
        if given.ops is not None:
            chosen = [shortened(case, given.ops) for case in chosen]
        if given.driver == "simulated":
            from penstock.plugins.testing.simulation.contract import in_memory

            from .simulated_driver import SimulatedDriver, survives

            mode = "continuous" if given.mode == "continuous" else "batches"
            chosen = [case for case in chosen if survives(case, mode)]
            with in_memory():
                results = [check(case, lambda each: SimulatedDriver(each, given.seed, mode)) for case in chosen]
        elif given.driver != "ttd":
            from .log_driver import case_drivers

            with case_drivers(
                engine=given.engine,
                on_kafka=given.driver == "kafka",
                is_continuous=given.mode == "continuous",
                brokers=1 if given.backlog is None else 2,
            ) as make_driver:
                results = [check(case, make_driver) for case in chosen]
        else:
            results = [check(case, TestDriver) for case in chosen]
    if not results:
        print(f"no case in {given.directory} fits", file=sys.stderr)
        return 2
    print(described(given))
    print_results(results)
    return 1 if any(result.difference for result in results) else 0


def sample(cases: list[Case], count: int) -> list[Case]:
    """Return at most `count` cases of each family, at equal distances."""
    families: dict[str, list[Case]] = {}
    for case in cases:
        families.setdefault(case["family"], []).append(case)
    return [
        members[number * len(members) // min(count, len(members))]
        for members in families.values()
        for number in range(min(count, len(members)))
    ]


def described(given: argparse.Namespace) -> str:
    """Return what was run."""
    engine = {"spark": "Spark", "embedded": "the embedded engine"}[given.engine]
    with_log = {"local": f"on {engine} with the local log", "kafka": f"on {engine} with Kafka"}
    simulated = f"on simulated hosts with the faults of seed {given.seed}"
    where = {"ttd": "in the test driver", "simulated": simulated, **with_log}
    mode = "" if given.driver == "ttd" else f", mode {given.mode}"
    most = "" if given.sample is None else f", at most {given.sample} cases of a family"
    first = "" if given.ops is None else f", the first {given.ops} inputs of each"
    backlog = "" if given.backlog is None else f", {given.backlog} inputs waiting at each start"
    return f"{where[given.driver]}{mode}{most}{first}{backlog}"


def print_results(results: list[Result]) -> None:
    """Print a line for each family, then the failures, and the differences that are listed with their reasons."""
    rows = [
        (family, len(members), sum(not each.difference for each in members), sum(bool(each.listed) for each in members))
        for family, members in sorted(by_family(results).items())
    ]
    print(table(rows))
    for result in results:
        if result.difference:
            print(f"FAILED {result.case}: {result.difference}")
    reasons: dict[str, list[str]] = {}
    for result in results:
        if result.listed:
            reasons.setdefault(result.listed, []).append(result.case)
    for reason, names in reasons.items():
        print(f"differ as listed ({reason}): {', '.join(names)}")


if __name__ == "__main__":
    sys.exit(main())
