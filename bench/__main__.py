"""`python -m bench [NAME]... [--json FILE]`: without names, lists what there is."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

BENCHMARKS = {
    "core-count": "bench.core:core_count",
    "spark-local-count": "bench.spark_local:count",
    "spark-local-filter-map": "bench.spark_local:filter_map",
    "kafka-count": "bench.kafka:count",
    "kafka-count-at-least-once": "bench.kafka:count_at_least_once",
    "kafka-filter-map": "bench.kafka:filter_map",
    "kafka-word-count": "bench.kafka:word_count",
    "startup": "bench.startup:startup",
}


def main(arguments: list[str] | None = None) -> int:
    """Run benchmarks by name; without names, list them."""
    parser = argparse.ArgumentParser("python -m bench", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as a list of objects")
    given = parser.parse_args(arguments)
    if not given.names:
        print("\n".join(BENCHMARKS))
        return 0
    for name in given.names:
        if name not in BENCHMARKS:
            parser.error(f"unknown benchmark {name!r}; there is: {', '.join(BENCHMARKS)}")
    results = []
    for name in given.names:
        module, _, function = BENCHMARKS[name].partition(":")
        result = getattr(importlib.import_module(module), function)()
        print(result, flush=True)
        results.append(result)
        if given.json:
            given.json.write_text(json.dumps([each.as_json() for each in results], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
