"""Latency at a steady rate: over Kafka beside Java Kafka Streams, one after the other; or over the local log."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .kafka_app import EMBEDDED, MASTER, program_command
from .latency_client import PARTITIONS, Load
from .latency_local import latency_local
from .peer import PEER, peer_command
from .result import PERCENTILES, Table, percentiles_ms
from .steady import load_average
from .tree import MARK, MarkedProcesses

RATE = 1_000.0
MICRO_BATCHES = "0s"
"""The trigger on the local log, if none is given."""
TRIGGER = "continuous"
"""The trigger of our side on Kafka, if none is given."""
WARM_UP = 15.0
"""Seconds of the load that are not measured: both sides' processes, and the broker, compile while they run."""
PATIENCE = 30.0
"""Seconds to wait for the last records."""
_STOP_SECONDS = 60.0
OURS, DIRECTORY, BY_ITSELF, THEIRS = "", "directory_", "embedded_", "peer_"
SIDES = {OURS: "penstock", DIRECTORY: "penstock, directory:", BY_ITSELF: "penstock, embedded", THEIRS: PEER}
"""The sides, by what their fields of a row begin with: ours with `changelog="topic:"`, ours with `directory:`, ours
with `changelog="topic:"` on the embedded engine, the peer."""


@dataclass(frozen=True)
class Case:
    """A program with its guarantee and commit interval. `words`: how many words its sentences have, if it reads
    some."""

    name: str
    guarantee: str
    commit_interval_ms: int
    words: int = 0

    @property
    def program(self) -> str:
        """The name of the program, on either side."""
        return "latency-word-count" if self.words else "latency-count"

    @property
    def sides(self) -> tuple[str, ...]:
        """All sides that the case is measured on. The word count is about its repartition topic, not its changelog."""
        return (OURS, BY_ITSELF, THEIRS) if self.words else (OURS, DIRECTORY, BY_ITSELF, THEIRS)


CASES = {
    case.name: case
    for case in (
        Case("count-at-least-once", "at_least_once", 1_000),
        Case("count-exactly-once-100ms", "exactly_once", 100),
        Case("count-exactly-once-20ms", "exactly_once", 20),
        Case("word-count-exactly-once-100ms", "exactly_once", 100, words=10),
    )
}


def latency(
    seconds: float = 60.0,
    log: str = "kafka",
    rate: float = RATE,
    trigger: str | None = None,
    rounds: int = 1,
    cases: tuple[str, ...] = tuple(CASES),
) -> Table:
    """On two cores. On Kafka `rounds` times, with the sides in turns and the order turned, and all figures together."""
    if log == "local":
        return latency_local("latency", MASTER, trigger or MICRO_BATCHES, seconds, rate)
    chosen = _chosen(cases)
    with KafkaBroker(heap="1g", jvm_options=()) as broker:
        bench = LatencyBench(broker, rate, seconds, trigger or TRIGGER)
        # The broker's JVM compiles what transactions need while it serves the first ones of either side.
        for side in (OURS, THEIRS):
            bench.rehearse(CASES["count-exactly-once-20ms"], side)
        return _table("latency", [bench.compare(each, each.sides, rounds) for each in chosen])


def latency_on_one_core(
    seconds: float = 60.0,
    log: str = "kafka",
    rate: float = RATE,
    trigger: str | None = None,
    cases: tuple[str, ...] = tuple(CASES),
) -> Table:
    """On one core, without the peer."""
    if log == "local":
        return latency_local("latency-1", "local[1]", trigger or MICRO_BATCHES, seconds, rate)
    chosen = _chosen(cases)
    with KafkaBroker(heap="1g", jvm_options=()) as broker:
        bench = LatencyBench(broker, rate, seconds, trigger or TRIGGER, master="local[1]")
        return _table("latency-1", [bench.compare(each, (OURS,)) for each in chosen])


def _chosen(names: Sequence[str]) -> list[Case]:
    unknown = set(names) - CASES.keys()
    if unknown:
        raise ValueError(f"case {min(unknown)!r}: there is {', '.join(CASES)}")
    return [CASES[each] for each in names]


def _table(name: str, rows: list[dict[str, Any]]) -> Table:
    """Return a table that has failed when outputs are missing."""
    found = [
        f"{row['name']}: {row[f'{side}missing']} outputs of {who} did not come"
        for row in rows
        for side, who in SIDES.items()
        if row.get(f"{side}missing")
    ]
    return Latencies(name, rows, "; ".join(found))


class Latencies(Table):
    """Rows of cases; printed with a line for each side of a case."""

    def __str__(self) -> str:
        sides = {**SIDES, "ratio_": "ratio"}
        lines = [
            {"case": row["name"].removeprefix("latency-"), "side": name}
            | {each: row.get(f"{side}{each}_ms", row.get(f"{side}{each}")) for each in PERCENTILES}
            | {each: row.get(side + each) for each in ("records", "missing", "load_average")}
            for row in self.rows
            for side, name in sides.items()
            if f"{side}p50_ms" in row or f"{side}p50" in row
        ]
        return str(Table(self.name, lines, self.failed))


@dataclass
class _Found:
    """The results of one side in all rounds."""

    milliseconds: list[float] = field(default_factory=list)
    missing: int = 0


@dataclass
class LatencyBench:
    """Measures cases on one broker: a load of `rate` records a second for `seconds`, after `warm_up` seconds."""

    broker: KafkaBroker
    rate: float
    seconds: float
    trigger: str
    master: str = MASTER
    warm_up: float = WARM_UP

    def rehearse(self, case: Case, side: str) -> None:
        """Run one side for the warm-up only."""
        LatencyBench(self.broker, self.rate, 0.0, self.trigger, self.master, self.warm_up)._run(case, side)

    def compare(self, case: Case, sides: Sequence[str], rounds: int = 1) -> dict[str, Any]:
        """Run the sides of a case one after the other, and in each round in the other order; return the row."""
        found = {side: _Found() for side in sides}
        for number in range(rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                milliseconds, missing = self._run(case, side)
                found[side].milliseconds += milliseconds
                found[side].missing += missing
                # A run takes minutes, and shows something while it does.
                print(f"{case.name}, {SIDES[side]}: {percentiles_ms(milliseconds)}", file=sys.stderr, flush=True)
        return self._row(case, found, rounds)

    def _row(self, case: Case, found: Mapping[str, _Found], rounds: int) -> dict[str, Any]:
        row: dict[str, Any] = {
            "name": f"latency-{case.name}",
            "guarantee": case.guarantee,
            "commit_interval_ms": case.commit_interval_ms,
            "trigger": self.trigger,
            "rate": self.rate,
            "seconds": self.seconds,
            "rounds": rounds,
            "load_average": load_average(),
        }
        for side, one in found.items():
            row |= {side + name: value for name, value in percentiles_ms(one.milliseconds).items()}
            row |= {f"{side}records": len(one.milliseconds), f"{side}missing": one.missing}
        if THEIRS in found:
            row["peer"] = PEER
            row |= {
                f"ratio_{each}": round(row[f"{each}_ms"] / row[f"peer_{each}_ms"], 2)
                for each in PERCENTILES
                if row[f"{each}_ms"] and row[f"peer_{each}_ms"]
            }
        return row

    def _run(self, case: Case, side: str) -> tuple[list[float], int]:
        """Run one side of a case; return the milliseconds of each measured output, and how many outputs did not
        come."""
        name = secrets.token_hex(4)
        source, target = f"bench-in-{name}", f"bench-out-{name}"
        log = KafkaLog(self.broker.bootstrap)
        log.create_topic(source, PARTITIONS)
        log.create_topic(target, PARTITIONS)
        log.close()
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as directory:
            command = [
                each.replace("{out}", target).replace("{dir}", directory) for each in self._command(case, side, source)
            ]
            file = f"{directory}/milliseconds.npy"
            load = Load(
                self.broker.bootstrap, source, target, case.guarantee == "exactly_once", self.rate, self.warm_up,
                self.seconds, case.words, PATIENCE, file,
            )  # fmt: skip
            counts = measured_by_clients(command, load, Path(directory))
            return np.load(file).tolist(), counts["expected"] - counts["received"]

    def _command(self, case: Case, side: str, source: str) -> list[str]:
        if side == THEIRS:
            settings = {"commit.interval.ms": str(case.commit_interval_ms), "producer.linger.ms": "0"}
            return peer_command(self.broker.bootstrap, case.program, source, case.guarantee, settings)
        ours = {
            "processing_guarantee": case.guarantee,
            "commit_interval": f"{case.commit_interval_ms}ms",
            "changelog": "directory:changelog" if side == DIRECTORY else "topic:",
        }
        master = EMBEDDED if side == BY_ITSELF else self.master
        return program_command(self.broker.bootstrap, case.program, source, self.trigger, ours, master)


def measured_by_clients(command: list[str], load: Load, directory: Path) -> dict[str, int]:
    """Run an application until its clients have measured it; return what these count. Raises RuntimeError with the end
    of what it printed when the application or its clients fail."""
    processes = MarkedProcesses()
    temporary = directory / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
    root = Path(__file__).parent.parent
    output = directory / "output"
    with output.open("wb") as printed:
        application = subprocess.Popen(
            command, stdout=printed, stderr=subprocess.STDOUT, cwd=root, env={**environment, MARK: processes.mark}
        )
    clients = subprocess.Popen(
        [sys.executable, "-m", "bench.latency_client", json.dumps(asdict(load))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root,
    )  # fmt: skip
    try:
        while clients.poll() is None:
            if application.poll() is not None:
                raise RuntimeError(f"it ended with {application.returncode}")
            time.sleep(0.2)
        measured, said = clients.communicate()
        if clients.returncode:
            raise RuntimeError(f"its clients failed: {said[-1000:]}")
        return dict(json.loads(measured))
    except RuntimeError as error:
        raise RuntimeError(f"{error}\n{output.read_text(errors='replace')[-3000:]}") from error
    finally:
        clients.kill()
        clients.communicate()
        application.terminate()
        try:
            application.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        processes.kill()
        application.wait()
