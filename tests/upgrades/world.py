"""A log, a host's disk and an application on them that starts again and again, beside a plain account of what it must
have counted."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import penstock
from penstock.plugins.engine.program.check import accept_stores, drop_stores
from penstock.plugins.engine.program.plan import Plan, plan
from penstock.plugins.engine.program.preparation import check_program, prepare
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.local.catalogue import Topic
from penstock.plugins.state.transfer.changelog_move import move_changelog
from penstock.plugins.testing.contracts.log_tests import read
from penstock.record import OutputBatch, TopicPartition

from ..leases import brief_lease
from .counting import counts
from .versions import Flow, Version

TOPICS = {"orders": 2, "orders-eu": 2, "returns": 2, "rates": 2, "prices": 2}
TICK_MS = 10_000
Command = Literal["stores accept", "stores drop", "changelog move"]
"""A command of `penstock`; those for stores are given for the store `counts`."""


class World:
    """What outlasts a start. `start` runs a version until it has processed everything, at a time after the last
    start's."""

    def __init__(self, directory: Path, changelog: str, versions: Sequence[Version]) -> None:
        self.directory = directory
        self._fed = [topic for topic in TOPICS if any(topic in _read(version) for version in versions)]
        self.log = LocalLog(str(directory / "log"))
        self.settings: dict[str, Any] = {"changelog": changelog, "data_dir": str(directory), "log": "local:log"}
        self.now = 0
        for topic in self._fed:
            self.log.create_topic(topic, TOPICS[topic])
        sinks = {flow.sink for version in versions for flow in version.flows if flow.sink is not None}
        self._seen = dict.fromkeys(sorted({*sinks, "dead"}), 0)
        for topic in self._seen:
            self.log.create_topic(topic, 1)
        self.records: dict[str, list[tuple[str, str]]] = {topic: [] for topic in TOPICS}

    def close(self) -> None:
        """Close the log."""
        self.log.close()

    def feed(self, keys: Iterable[int]) -> None:
        """Produce one record of each key to each topic, key n to partition n of as many as the topic had at first."""
        for topic in self._fed:
            rows = [(f"k{key}", f"{topic}{self.now}") for key in keys]
            self.records[topic] += rows
            self.log.append(
                OutputBatch(
                    topic,
                    [key.encode() for key, _ in rows],
                    [value.encode() for _, value in rows],
                    [self.now] * len(rows),
                    None,
                    [(int(key[1:]) % TOPICS[topic],) for key, _ in rows],
                )
            )

    def lose_host(self) -> None:
        """Delete every local copy of the state."""
        for state in self.directory.rglob("state"):
            shutil.rmtree(state)

    def start(self, version: Version, *, until_done: bool = True) -> dict[str, dict[str, Any]]:
        """Run a version over all there is, and if it has timers for ten more seconds; return what its stores have.
        Raises what a start raises.

        Not `until_done`: one batch of each task that reads no repartition topic.
        """
        application = version.run_as(self.directory, **self.settings)
        with ExitStack() as stack:
            prepared = prepare(application, self.log)
            application = prepared.application
            resources = ProcessResources(penstock.World(sleep=lambda seconds: None))
            stack.callback(resources.close)
            workers = []
            for task, inputs in prepared.assignment.tasks.items():
                if not until_done and any(each.topic in prepared.assignment.internal for each in inputs):
                    continue
                worker = TaskWorker(application, task, inputs, self.log, resources=resources)
                stack.callback(worker.close)
                workers.append(worker)
            processed = True
            while processed:
                reports = [worker.run_batch(self.log.end_offsets(worker.partitions), self.now) for worker in workers]
                processed = (
                    until_done and bool(prepared.assignment.internal) and any(each.records_in for each in reports)
                )
            if any(flow.timers for flow in version.flows):
                for worker in workers:
                    worker.run_batch({}, self.now + TICK_MS)
            for worker in workers:
                prepared.committed.add(worker.partitions)
            contents: dict[str, dict[str, Any]] = {}
            found = [(name, each) for worker in workers if worker.task for name, each in worker.task.stores.items()]
            for name, content in [*found, *resources.globals_of(application).stores.items()]:
                so_far = contents.setdefault(name, {})
                for key, value in counts(content):
                    so_far[key] = so_far[key] + value if key in so_far else value
        self.now += TICK_MS + TICK_MS // 2
        return contents

    def plan(self, version: Version) -> Plan:
        """Return what `penstock plan` says of a version."""
        return plan(version.run_as(self.directory, **self.settings), self.log)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, as Kafka can. Nothing in a local log does, so its object is made anew to see
        it."""
        storage = self.log._storage
        with storage.write(f"grow topic {topic!r}") as (transaction, topics):
            found = topics.named(topic)
            storage.catalogue.put(transaction, Topic.make(found.id, replace(found.info, partitions=partitions)))
        self.log.close()
        self.log = LocalLog(str(self.directory / "log"))

    def command(self, command: Command | None, before: Version, after: Version) -> None:
        """Do what a command of `penstock` does, between a version and the next."""
        application = after.run_as(self.directory, **self.settings)
        if command == "stores accept":
            accept_stores(application.id, self.log, brief_lease(self.log, application.id), ["counts"])
        elif command == "stores drop":
            drop_stores(application, self.log, brief_lease(self.log, application.id), ["counts"])
        elif command == "changelog move":
            source = before.run_as(self.directory, **self.settings).settings.changelog
            move_changelog(check_program(application, self.log), self.log, source, lambda: None)

    def outputs(self) -> dict[str, list[tuple[str, str]]]:
        """Return what was written to each sink's topic since the last call, sorted."""
        found: dict[str, list[tuple[str, str]]] = {}
        for topic in self._seen:
            records = read(self.log, TopicPartition(topic, 0))[self._seen[topic] :]
            self._seen[topic] += len(records)
            if records:
                found[topic] = sorted(((each.key or b"").decode(), (each.value or b"").decode()) for each in records)
        return found

    def everything(self) -> dict[str, Any]:
        """Return all that a refused start must not have changed."""
        topics = self.log.topics()
        partitions = [
            TopicPartition(name, number) for name, info in topics.items() for number in range(info.partitions)
        ]
        files = (path for path in self.directory.rglob("*") if path.is_file() and "log" not in path.parts)
        return {
            "topics": topics,
            "ends": self.log.end_offsets(partitions),
            "committed": self.log.committed("app", partitions),
            "program": self.log.get_meta("app", "program"),
            "files": sorted(str(path) for path in files if not path.name.endswith(".lock")),
        }


def _read(version: Version) -> set[str]:
    return {topic for flow in version.flows for topic in _topics(flow)} | {each.topic for each in version.tables}


def _topics(flow: Flow) -> tuple[str, ...]:
    return flow.topics or tuple(each for each in TOPICS if re.fullmatch(flow.pattern or "", each))


class Account:
    """What an application must have counted and sent on, worked out from the records alone."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self._read: dict[tuple[str, str], int] = {}
        self._due: dict[tuple[str, str], int] = {}

    def forget(self, store: str) -> None:
        """Note that a store starts empty."""
        self.counts.pop(store, None)

    def start(
        self, version: Version, world: World
    ) -> tuple[dict[str, dict[str, Any]], dict[str, list[tuple[str, str]]]]:
        """Return what stores must have, and what must have been sent on, after a start of `version` that begins now."""
        sent: dict[str, list[tuple[str, str]]] = {}
        for flow in version.flows:
            for topic in _topics(flow):
                for key in self._unread(version, flow, topic, world.records[topic]):
                    counted = [self._count(each.name, key) for each in flow.stores]
                    if flow.sink is not None:
                        sent.setdefault(flow.sink, []).append((key, " ".join(map(str, counted))))
            self._tick(flow, world.now)
        stores = {each.name: dict(self.counts.get(each.name, {})) for flow in version.flows for each in flow.stores}
        tables = {each.store.name: dict(world.records[each.topic]) for each in version.tables}
        return {**stores, **tables}, {topic: sorted(rows) for topic, rows in sent.items()}

    def _unread(self, version: Version, flow: Flow, topic: str, records: list[tuple[str, str]]) -> list[str]:
        reset = flow.source.get("offset_reset") or version.settings.get("offset_reset", "earliest")
        begin = self._read.get((flow.name, topic), len(records) if reset == "latest" else 0)
        self._read[flow.name, topic] = len(records)
        return [key for key, _ in records[begin:]]

    def _count(self, store: str, key: str, by: int = 1) -> int:
        counts = self.counts.setdefault(store, Counter())
        counts[key] += by
        return counts[key]

    def _tick(self, flow: Flow, now: int) -> None:
        """Count what the timers of a flow's tasks, two of them, do at the time of a start and ten seconds later."""
        for name, timer in list(self._due):
            if name == flow.name and timer not in flow.timers:
                del self._due[name, timer]
        for timer in flow.timers:
            due = self._due.setdefault((flow.name, timer), now + TICK_MS)
            for time in (now, now + TICK_MS):
                if due <= time:
                    self._count(flow.stores[0].name, f"tick {timer}", 2)
                    due += (1 + (time - due) // TICK_MS) * TICK_MS
            self._due[flow.name, timer] = due
