"""A table whose topic is its changelog, in a process of its own: `python -m tests.kafka.table_driver BROKER ID DIR`.

It joins a stream with the table, a few records a commit, and ends when it has joined all.
"""

from __future__ import annotations

import sys
from itertools import count

from penstock import Application
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.engine.task.locations import open_log

from ..processes import opened_workers


def application(bootstrap: str, name: str, directory: str) -> Application:
    builder = StreamsBuilder()
    rows = builder.table(f"{name}-rows", "rows")
    builder.stream(f"{name}-in").left_join(rows, lambda value, row: f"{value}:{row}").to(f"{name}-out")
    return Application(
        name,
        builder,
        log=f"kafka:{bootstrap}",
        changelog="topic:",
        topology_optimization="reuse_ktable_source_topics",
        data_dir=directory,
        value_serde="str",
    )


def main(bootstrap: str, name: str, directory: str) -> None:
    app = application(bootstrap, name, directory)
    log = open_log(app.settings)
    with opened_workers(app, log) as (worker,):
        ends = log.end_offsets(worker.partitions)
        for step in count(1):
            worker.run_batch({each: min(3 * step, end) for each, end in ends.items()}, 0)
            if all(3 * step >= end for end in ends.values()):
                break
    log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
