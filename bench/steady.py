"""SteadyApplication: a count that runs on Spark in a process of its own, fed and watched from this one."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import OutputBatch, Settings, TopicPartition
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .tree import MARK, MarkedProcesses, Usage

MASTER = "local[2]"
_START_SECONDS = 180.0
_STOP_SECONDS = 20.0
_FENCED = ("was taken over by another process", "the next batch takes it up again")
"""Log lines about a task of this application that was fenced by another process of it."""


@dataclass(frozen=True)
class Batch:
    """A batch of Spark's: how long it took, how many records it read, and why tasks were opened, if reports say so."""

    seconds: float
    records: int
    reasons: dict[str, int]


class SteadyApplication:
    """Runs in `with`: topics `source` and `target` are made, and the application starts with the trigger.

    Each partition of `source` is one task. `log` is "local", or `kafka:HOST:PORT`. Raises RuntimeError with the end of
    what it printed when the application ends by itself.
    """

    def __init__(
        self, tasks: int, log: str = "local", *, master: str = MASTER, outputs: int = 4, trigger: str = "0s"
    ) -> None:
        self.tasks = tasks
        self.outputs = outputs
        self.master = master
        self.log_name, _, self.bootstrap = log.partition(":")
        self.processes = MarkedProcesses()
        self.batches: list[Batch] = []
        self.fences = 0
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True)
        self.directory = Path(self._temporary.name)
        self.openings_file = self.directory / "openings"
        self._output = self.directory / "output"
        name = secrets.token_hex(4)
        self.source, self.target = f"bench-in-{name}", f"bench-out-{name}"
        # With the default, an hour, the changelog of a shorter run would only grow.
        settings: dict[str, Any] = {"data_dir": str(self.directory / "data"), "changelog_grace": "1m"}
        if log == "local":
            self.log = open_log(Settings(**settings))
        else:
            settings["log"] = log
            self.log = KafkaLog(self.bootstrap)
        self._spec = {
            "id": f"bench-{name}", "source": self.source, "target": self.target, "master": master, "trigger": trigger,
            "openings": str(self.openings_file), "settings": settings,
        }  # fmt: skip
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._changed = threading.Condition()

    def __enter__(self) -> SteadyApplication:
        try:
            self.log.create_topic(self.source, self.tasks)
            self.log.create_topic(self.target, self.outputs)
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self.processes.kill()
        if self._process is not None:
            self._process.wait()
            assert self._reader is not None and self._process.stdout is not None
            self._reader.join()
            self._process.stdout.close()
        self.log.close()
        self._temporary.cleanup()

    def _start(self) -> None:
        temporary = self.directory / "temporary"
        temporary.mkdir()
        environment = {
            **os.environ,
            MARK: self.processes.mark,
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_DIRS": str(temporary),
        }
        with self._output.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.steady_app", json.dumps(self._spec)],
                stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=Path(__file__).parent.parent,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for text in self._process.stdout:
            if not text.startswith("{"):
                continue
            line = json.loads(text)
            with self._changed:
                if "log" in line:
                    self.fences += any(each in line["log"] for each in _FENCED)
                    with self._output.open("a") as file:
                        file.write(f"{line['level']} {line['log']}\n")
                else:
                    self.batches.append(Batch(line["seconds"], line["records"], line["reasons"]))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def append(self, partition: int, values: Sequence[str]) -> None:
        """Write records to one partition of the source, all with the partition as the key."""
        self.append_to([partition] * len(values), values)

    def append_to(self, partitions: Sequence[int], values: Sequence[str]) -> None:
        """Write a record to each of the partitions, with the partition as the key."""
        now = time.time_ns() // 1_000_000
        self.log.append(
            OutputBatch(
                self.source,
                [b"%d" % each for each in partitions],
                [each.encode() for each in values],
                [now] * len(values),
                None,
                [(each,) for each in partitions],
            )
        )

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a batch after which the condition holds; return whether it did in time."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        with self._changed:
            while not condition():
                # A moment's limit, as the end of the process is seen only here.
                self._changed.wait(max(0.0, min(0.5, deadline - time.monotonic())))
                if self._process.poll() is not None:
                    said = self._output.read_text(errors="replace")[-3000:]
                    raise RuntimeError(f"the application ended with {self._process.returncode}:\n{said}")
                if time.monotonic() > deadline:
                    return condition()
        return True

    def pass_time(self, seconds: float) -> None:
        """Let time pass; raises RuntimeError when the application ends."""
        self.wait_until(lambda: False, seconds)

    def open_all(self, seconds: float = _START_SECONDS) -> bool:
        """Write a record to each partition; return whether all tasks were opened, and a batch ended after, in time."""
        self.append_to(range(self.tasks), ["first"] * self.tasks)
        wanted = self.tasks
        return self.wait_until(
            lambda: len(self.openings()) >= wanted and sum(each.records for each in self.batches) >= wanted, seconds
        )

    def run_batch(self, partition: int, seconds: float) -> Batch | None:
        """Write two records to one partition; return the batch that read them, None if none did in time."""
        before = sum(each.records for each in self.batches)
        known = len(self.batches)
        self.append(partition, ["one", "two"])
        if not self.wait_until(lambda: sum(each.records for each in self.batches) >= before + 2, seconds):
            return None
        return max(self.batches[known:], key=lambda each: each.records)

    def openings(self) -> dict[str, list[int]]:
        """Return for each task the processes that opened it, in order."""
        found: dict[str, list[int]] = {}
        if self.openings_file.exists():
            for line in self.openings_file.read_text().splitlines():
                task, process = line.split()
                found.setdefault(task, []).append(int(process))
        return found

    def reopenings(self) -> dict[str, Any]:
        """Return how many times tasks were opened after their first time, and the reasons that their reports give."""
        openings = self.openings()
        said: Counter[str] = Counter()
        for batch in list(self.batches):
            said.update(batch.reasons)
        del said["first"]
        return {"reopenings": sum(len(each) - 1 for each in openings.values()), "reasons": dict(said)}

    def behind(self) -> int:
        """Return how many offsets of the source are not committed yet."""
        partitions = [TopicPartition(self.source, each) for each in range(self.tasks)]
        committed = self.log.committed(str(self._spec["id"]), partitions)
        return sum(end - (committed[each] or 0) for each, end in self.log.end_offsets(partitions).items())

    def usage(self) -> list[Usage]:
        """Return the present usage of each of its processes."""
        return self.processes.look()


@contextmanager
def opened(tasks: int, log: str, *, master: str = MASTER, trigger: str = "0s") -> Iterator[SteadyApplication]:
    """Yield an application with all its tasks open. `log` is "local", or "kafka" for a broker of its own."""
    with log_named(log) as location, SteadyApplication(tasks, location, master=master, trigger=trigger) as running:
        if not running.open_all():
            raise RuntimeError(f"{len(running.openings())} of {tasks} tasks were opened in {_START_SECONDS:.0f} s")
        yield running


@contextmanager
def log_named(name: str) -> Iterator[str]:
    """Yield the log for a `SteadyApplication`: "local", or a new broker for "kafka"."""
    if name == "local":
        yield name
    elif name == "kafka":
        with KafkaBroker(heap="1g", jvm_options=()) as broker:
            yield f"kafka:{broker.bootstrap}"
    else:
        raise ValueError(f'log {name!r}: expected "local" or "kafka"')


def load_average() -> float:
    """Return how many processes wanted a core during the last minute: the figures of a busy machine are worse."""
    return round(os.getloadavg()[0], 1)
