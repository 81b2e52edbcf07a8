"""A log, a changelog and a store backend that fail at a chosen step of a commit; and the programs that are run over
them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Application, Processor, Record, Topology, key_value_store
from penstock.hooks import Component
from penstock.log import Commit, Log, TaskCommitter
from penstock.plugins.changelogs.memory import MemoryChangelog
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition
from penstock.store import Changes
from penstock.stores.memory import MemoryBackend
from penstock.world import World

STEPS = ("before delta", "after delta", "before commit", "after commit", "before write", "after write")
"""Where a commit can end: `after` means that the step was done, but nobody was told."""


class Crash(Exception):
    """What a step fails with."""


class Faults:
    """Which steps fail, and how often each was come by. One for all parts, as they are made by name."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._planned: dict[str, list[int]] = {}

    def plan(self, step: str, after: int = 0) -> None:
        """Fail when `step` is come by for the time `after` + 1 from now."""
        self._planned.setdefault(step, []).append(after)

    def step(self, name: str) -> None:
        waiting = self._planned.get(name)
        if waiting:
            waiting[0] -= 1
            if waiting[0] < 0:
                waiting.pop(0)
                raise Crash(name)


FAULTS = Faults()


class FaultyChangelog(MemoryChangelog):
    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        FAULTS.step("before delta")
        super().append(changes, previous, version, commit)
        FAULTS.step("after delta")


class FaultyBackend(MemoryBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        FAULTS.step("before write")
        super().write(changes, previous, version)
        FAULTS.step("after write")


class FaultyCommitter(TaskCommitter):
    def __init__(self, inner: TaskCommitter) -> None:
        self._inner = inner

    @property
    def committed(self) -> Commit | None:
        return self._inner.committed

    def is_current(self) -> bool:
        return self._inner.is_current()

    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        FAULTS.step("before commit")
        self._inner.commit(commit, outputs)
        FAULTS.step("after commit")

    def close(self) -> None:
        self._inner.close()


class FaultyLog(MemoryLog):
    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        return FaultyCommitter(super().open_committer(application_id, task_id, partitions))


COMPONENTS = {
    ("changelog", "faulty"): Component("changelog", "faulty", FaultyChangelog, "tests", "tests", "0"),
    ("store backend", "faulty"): Component("store backend", "faulty", FaultyBackend, "tests", "tests", "0"),
    ("store backend", "faulty-too"): Component("store backend", "faulty-too", FaultyBackend, "tests", "tests", "0"),
}
"""What `registry().components` needs for them."""


class Counting(Processor):
    """Counts by key in one store, keeps a token of the last record in another, and flushes counts as time passes.

    A record of value "commit" asks for a commit, so that a batch holds several.
    """

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")
        self.tokens = context.get_store("tokens")
        context.schedule("10ms", self.flush, STREAM_TIME)
        context.schedule("7ms", lambda now: self.say("wall", now), WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        counted = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, counted)
        if self.context.config["user"].get("tokens"):
            token = secrets.token_hex(8)
            self.tokens.put(record.key, token)
            self.context.forward(record.with_value(f"{record.value} {token}"))
        else:
            self.tokens.put(record.key, record.value)
            self.context.forward(record.with_value(f"{record.value} {counted}"))
        if record.value == "commit":
            self.context.commit()

    def flush(self, now: int) -> None:
        self.say("stream", now)
        for key, counted in list(self.counts.all()):
            self.context.forward(Record(key, f"flushed {counted}", now))
            self.counts.delete(key)

    def say(self, what: str, now: int) -> None:
        self.context.forward(Record(None, f"{what} {now}", now))


_unique = count()


def application(directory: Path, *, backends: tuple[str, str] = ("faulty", "faulty"), **settings: Any) -> Application:
    """Two inputs, one task, two stores (on the named backends), one output."""
    topology = (
        Topology()
        .add_source("first", "a")
        .add_source("second", "b")
        .add_processor(
            "count",
            Counting,
            ["first", "second"],
            stores=[
                key_value_store("counts", key_serde="str", backend=backends[0]),
                key_value_store("tokens", key_serde="str", backend=backends[1]),
            ],
        )
        .add_sink("out", "out", "count")
    )
    given = {"changelog": f"faulty:{next(_unique)}", "log": "memory:", "data_dir": str(directory), **settings}
    return Application("app", topology, **given)


INPUTS = (TopicPartition("a", 0), TopicPartition("b", 0))


def new_log(log: Log | None = None) -> Log:
    """The topics of `application`."""
    log = FaultyLog() if log is None else log
    for topic in ("a", "b", "out"):
        log.create_topic(topic, 1)
    return log


def new_worker(of: Application, log: Log) -> TaskWorker:
    """What another process makes: nothing is shared but what the log, the changelog and the disk hold."""
    return TaskWorker(of, TaskId(0, 0), INPUTS, log, resources=ProcessResources(World(sleep=lambda seconds: None)))


def produce(log: Log, topic: str, records: Iterable[tuple[str, str, int]]) -> None:
    rows = list(records)
    if rows:
        keys, values, times = zip(*rows, strict=True)
        log.append(
            OutputBatch(topic, [key.encode() for key in keys], [value.encode() for value in values], list(times))
        )


def produced(log: Log, topic: str = "out") -> list[tuple[str | None, str | None, int]]:
    """Every record of a topic's only partition."""
    partition = TopicPartition(topic, 0)
    (start,), (end,) = log.start_offsets([partition]).values(), log.end_offsets([partition]).values()
    found: list[tuple[str | None, str | None, int]] = []
    while start < end:
        batches = log.fetch(partition, start, end, 1 << 20)
        if not batches:
            break
        for each in batches:
            start = each.next_offset
            texts = [[None if raw is None else raw.decode() for raw in column] for column in (each.keys, each.values)]
            found += zip(*texts, each.timestamps, strict=True)
    return found


def stores(worker: TaskWorker, ends: Mapping[TopicPartition, int] | None = None) -> dict[str, dict[Any, Any]]:
    """What an open worker's stores hold."""
    assert worker.task is not None
    return {name: dict(store.all()) for name, store in worker.task.stores.items()}  # type: ignore[attr-defined]
