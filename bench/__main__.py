"""`python -m bench [NAME]... [--json FILE] [OPTION]...`: without names, lists what there is."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
from pathlib import Path

BENCHMARKS = {
    "core-count": "bench.core:core_count",
    "core-windowed-count": "bench.core:core_windowed_count",
    "dsl-count": "bench.dsl:dsl_count",
    "dsl-costs": "bench.dsl_costs:dsl_costs",
    "branches": "bench.branches:branches",
    "model": "bench.model:model",
    "look-ups": "bench.look_ups:look_ups",
    "sinks": "bench.sinks:sinks",
    "spark-local-count": "bench.spark_local:count",
    "spark-local-windowed-count": "bench.spark_local:windowed_count",
    "spark-local-session-count": "bench.spark_local:session_count",
    "spark-local-filter-map": "bench.spark_local:filter_map",
    "kafka-count": "bench.kafka:count",
    "kafka-count-at-least-once": "bench.kafka:count_at_least_once",
    "kafka-filter-map": "bench.kafka:filter_map",
    "kafka-word-count": "bench.kafka:word_count",
    "kafka-windowed-count": "bench.kafka:windowed_count",
    "kafka-dsl-word-count": "bench.kafka:dsl_word_count",
    "kafka-dsl-windowed-count": "bench.kafka:dsl_windowed_count",
    "kafka-stream-table-join": "bench.kafka:stream_table_join",
    "kafka-stream-stream-join": "bench.kafka:stream_stream_join",
    "kafka-engines": "bench.kafka:engines",
    "window-expiry": "bench.stores:window_expiry",
    "store-size": "bench.stores:store_size",
    "commit-cost": "bench.stores:commit_cost",
    "startup": "bench.startup:startup",
    "first-output": "bench.first_output:first_output",
    "many-tasks": "bench.many_tasks:many_tasks",
    "many-tasks-kafka": "bench.many_tasks:many_tasks_kafka",
    "latency": "bench.latency:latency",
    "latency-1": "bench.latency:latency_on_one_core",
    "dataframe-count": "bench.dataframe:dataframe_count",
    "dataframe-operators": "bench.dataframe:dataframe_operators",
    "idle": "bench.long_runs:idle",
    "trickle": "bench.long_runs:trickle",
    "quiet": "bench.quiet:quiet",
    "queries": "bench.queries:queries",
    "metrics-cost": "bench.metrics_cost:metrics_cost",
    "metrics-instructions": "bench.metrics_cost:metrics_instructions",
    "values": "bench.values:values",
    "restore": "bench.restore:restore",
    "failover": "bench.failover:failover",
    "state-export": "bench.state_export:state_export",
}
OPTIONS = (
    "tasks",
    "batches",
    "limit",
    "seconds",
    "minutes",
    "log",
    "changelog",
    "entries",
    "windows",
    "value_bytes",
    "commit_records",
    "rate",
    "trigger",
    "rounds",
    "cases",
)


def main(arguments: list[str] | None = None) -> int:
    """Run benchmarks by name; without names, list them."""
    parser = argparse.ArgumentParser("python -m bench", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as a list of objects")
    parser.add_argument("--tasks", type=_numbers, metavar="N,...", help="numbers of tasks")
    parser.add_argument("--batches", type=int, metavar="N", help="how many batches are measured")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="after which a number of tasks is given up")
    parser.add_argument("--seconds", type=float, metavar="N", help="how long is measured")
    parser.add_argument("--minutes", type=float, metavar="N", help="how long is measured")
    parser.add_argument("--log", choices=("local", "kafka"))
    parser.add_argument("--changelog", metavar="NAME:LOCATION", help="of our side, as in the settings")
    parser.add_argument("--entries", type=int, metavar="N", help="how many entries the store has")
    parser.add_argument("--windows", type=int, metavar="N", help="in how many windows they are")
    parser.add_argument("--value-bytes", type=int, metavar="N", help="how long their values are")
    parser.add_argument("--commit-records", type=int, metavar="N", help="how many records a commit has")
    parser.add_argument("--rate", type=float, metavar="N", help="how many records are sent a second")
    parser.add_argument("--trigger", metavar="TRIGGER", help="of our side, as of `penstock run`")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often all sides are measured, in turns")
    parser.add_argument("--cases", type=_names, metavar="NAME,...", help="which cases are measured")
    given = parser.parse_args(arguments)
    if not given.names:
        print("\n".join(BENCHMARKS))
        return 0
    options = {name: value for name in OPTIONS if (value := getattr(given, name)) is not None}
    for name in given.names:
        if name not in BENCHMARKS:
            parser.error(f"unknown benchmark {name!r}; there is: {', '.join(BENCHMARKS)}")
    results = []
    for name in given.names:
        module, _, function = BENCHMARKS[name].partition(":")
        benchmark = getattr(importlib.import_module(module), function)
        unknown = options.keys() - inspect.signature(benchmark).parameters.keys()
        if unknown:
            parser.error(f"{name} has no option --{min(unknown)}")
        result = benchmark(**options)
        print(result, flush=True)
        results.append(result)
        if given.json:
            rows = [row for each in results for row in each.rows]
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(each.failed for each in results) else 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    sys.exit(main())
