"""A driver's start, as `penstock run` makes it until Spark comes in, and what a driver and the commands ask of brokers
later.

`python -m tests.kafka.early_starter HOST:PORT APPLICATION DIRECTORY SECONDS` prints "prepared" when it is, and for each
line on standard input asks everything once more and prints "asked". SECONDS is how long one try of a call waits, 0 for
the usual time.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from penstock import Application, Topology
from penstock.plugins.engine.program.lease import LeaseKeeper
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.logs.kafka import admin

ORDERS, TOTALS = "early-orders", "early-totals"


def topology() -> Topology:
    """Return a program that copies."""
    return Topology().add_source("in", ORDERS).add_sink("out", TOTALS, "in")


def main(bootstrap: str, application_id: str, directory: str, seconds: str) -> None:
    """Start, and ask until standard input ends."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if float(seconds):
        admin._TRY_SECONDS = float(seconds)
    given: dict[str, Any] = {
        "log": f"kafka:{bootstrap}",
        "data_dir": str(Path(directory) / application_id),
        "task_timeout": "3m",
    }
    application = Application(application_id, topology(), **given)
    log = open_log(application.settings)
    keeper = LeaseKeeper(log, application_id)
    prepare(application, log)
    print("prepared", flush=True)
    for line in sys.stdin:
        keeper.renew()
        log.lease(f"{application_id}-{line.strip()}", "a test", 1000).release()
        log.delete_commits(f"{application_id}-{line.strip()}")
        prepare(application, log)
        print("asked", flush=True)
    keeper.release()
    log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
