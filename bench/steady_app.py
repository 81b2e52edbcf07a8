"""`python -m bench.steady_app SPEC`: the count on Spark until SIGTERM; prints a line of JSON for each batch.

SPEC is JSON: `id`, `source` and `target` (topics), `master`, `trigger`, `openings` (the file for a line at each opening
of a task), and `settings` of the application.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from typing import Any

from penstock import Application, ProcessorContext, Topology, key_value_store
from penstock.plugins.engine.run.progress import RunProgress
from penstock.plugins.spark.runner import run

from .programs import EchoingCount


class Count(EchoingCount):
    """Notes in a file that it was opened."""

    def init(self, context: ProcessorContext) -> None:
        """Note the task and the process."""
        super().init(context)
        # One write to a file opened for appending is not mixed with another process's.
        file = os.open(context.config["user"]["openings"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{context.task_id} {os.getpid()}\n".encode())
        os.close(file)


def topology(source: str, target: str) -> Topology:
    """Return source -> count -> sink."""
    return (
        Topology()
        .add_source("in", source)
        .add_processor("count", Count, "in", stores=[key_value_store("counts", key_serde="str")])
        .add_sink("out", target, "count")
    )


class _Lines(logging.Handler):
    """Prints log lines, as the batches are."""

    def emit(self, record: logging.LogRecord) -> None:
        _print({"log": record.getMessage(), "level": record.levelname})


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _progress(progress: RunProgress) -> None:
    if progress.reports:
        # Reports may not have the field: then only the file of openings shows what was opened.
        reasons = Counter(filter(None, (getattr(each, "opened", "") for each in progress.reports)))
        records = sum(each.records_in for each in progress.reports)
        _print({"seconds": progress.batch_seconds, "records": records, "reasons": reasons})


def main() -> None:
    """Run until SIGTERM."""
    spec = json.loads(sys.argv[1])
    logger = logging.getLogger("penstock")
    logger.setLevel(logging.INFO)
    logger.addHandler(_Lines())
    logger.propagate = False
    application = Application(
        spec["id"],
        topology(spec["source"], spec["target"]),
        user={"openings": spec["openings"]},
        **spec["settings"],
    )
    run(application, spec["trigger"], master=spec["master"], on_progress=_progress)


if __name__ == "__main__":
    main()
