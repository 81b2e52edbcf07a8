"""The application of the benchmarks of restores: it keeps the last value of each key. `python -m bench.restore_app`."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from penstock import Application, Processor, Record, RestoreEvent, Topology, key_value_store, run

ID = "bench-restore"


class Keep(Processor):
    """Puts each record into the store, and passes it on if its value is short."""

    def init(self, context: Any) -> None:
        super().init(context)
        self._store = context.get_store("kept")

    def process(self, record: Record) -> None:
        self._store.put(record.key, record.value)
        if len(record.value) < 10:
            self.context.forward(record)


def application(**settings: Any) -> Application:
    """Return the application; all serdes are bytes."""
    raw: dict[str, Any] = {"key_serde": "bytes", "value_serde": "bytes"}
    topology = (
        Topology()
        .add_source("in", f"{ID}-in", **raw)
        .add_processor("keep", Keep, "in", stores=[key_value_store("kept", **raw)])
        .add_sink("out", f"{ID}-out", "keep", **raw)
    )
    return Application(ID, topology, **{"engine": "embedded", **settings})


def note(file: str, event: RestoreEvent) -> None:
    """Add a line with the time, and the processor time of this process, which restores."""
    with open(file, "a") as times:
        times.write(f"{os.getpid()} {time.monotonic()} {time.process_time()}\n")


def note_copy(file: str, event: RestoreEvent) -> None:
    """Add a line with the task of a standby, and the entries that it has written."""
    with open(file, "a") as lines:
        lines.write(f"{event.task_id} {event.restored}\n")


def restored(settings: dict[str, Any]) -> dict[str, Any]:
    """Run it where nothing is to be processed; return the seconds of the restores, and what the processes took."""
    with tempfile.NamedTemporaryFile("r") as file:
        found = run(application(restore_listener=partial(note, file.name), **settings))
        lines = [line.split() for line in file]
    times = sorted(float(at) for _, at, _ in lines)
    of_processes: dict[str, list[float]] = {}
    for pid, _, cpu in lines:
        of_processes.setdefault(pid, []).append(float(cpu))
    seconds = times[-1] - times[0]
    return {
        "entries": found.restored,
        "seconds": seconds,
        "cores": sum(each[-1] - each[0] for each in of_processes.values()) / seconds,
        "whole_seconds": found.seconds,
        "peak_mb": int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024,
    }


def follow(settings: dict[str, Any]) -> None:
    """Run it until it is killed; print a line when its tasks begin to run.

    `dies` among the settings: once this file is there, the process kills itself inside its next commit on Kafka, whose
    records and positions are in an open transaction then.
    """
    dies = settings.pop("dies", None)
    if dies is not None:
        _die_inside_a_commit(Path(dies))
    with _with_listener(settings).start("continuous", wait=True) as running:
        print(json.dumps({"at": time.time()}), flush=True)
        running.wait()


def _die_inside_a_commit(file: Path) -> None:
    from penstock.plugins.logs.kafka.transactions import Transactions

    end = Transactions._commit

    def die_or_end(self: Transactions, seconds: float) -> None:
        if file.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        end(self, seconds)

    Transactions._commit = die_or_end  # type: ignore[method-assign]


def drive(settings: dict[str, Any], spark: dict[str, str]) -> None:
    """Run it on a cluster until it is ended; print a line for all that penstock says in the driver.

    `spark`: the options of the session. Besides, `master`.
    """
    from penstock.plugins.spark import run as run_on_spark
    from penstock.plugins.spark.sessions import make_session

    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(created)f %(message)s"))
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    session = make_session(spark.pop("master"), spark)
    run_on_spark(_with_listener(settings), "continuous", session=session)


def _with_listener(settings: dict[str, Any]) -> Application:
    """Return the application; `copies` among the settings is the file for `note_copy`."""
    file = settings.pop("copies")
    return application(**settings, standby_listener=partial(note_copy, file))


if __name__ == "__main__":
    given = [json.loads(each) for each in sys.argv[2:]]
    match sys.argv[1]:
        case "restored":
            print(json.dumps(restored(*given)), flush=True)
        case "follow":
            follow(*given)
        case "drive":
            drive(*given)
