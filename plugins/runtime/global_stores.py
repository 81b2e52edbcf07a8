"""Global stores: one copy per host and application, fed from topics, shared by all processes of the host."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.config import Application
from penstock.errors import UnknownTopicError
from penstock.hooks import registry
from penstock.log import Log
from penstock.nodes import GlobalStore, Subtopology, TaskId
from penstock.record import TopicPartition
from penstock.serde import Serde
from penstock.store import StateStore, StoreBackend
from penstock.stores.layers.commit_buffer import CommitBuffer
from penstock.task import RetryRequested, Task, resolve_serde

from .locations import making_state_directory

_FETCH_BYTES = 4 * 1024 * 1024
_CHUNK = 10_000


class GlobalStores:
    """The global stores of one application on this host.

    Whoever opens a batch calls `update`: it takes the host's write lock, reads each topic up to the batch's planned end, and writes
    rows and position in one step, so that every process sees the same. There is no changelog: the topic is it.
    """

    def __init__(self, application: Application, directory: Path) -> None:
        self._parts = [
            _Part(application, each, directory / each.store.name) for each in application.program.global_stores
        ]
        self.stores: dict[str, StateStore] = {part.store.name: part.store for part in self._parts}

    def update(self, log: Log, ends: Mapping[TopicPartition, int]) -> None:
        """Read on to `ends`; for partitions that it does not name, to the end of the log."""
        for part in self._parts:
            part.update(log, ends)

    def close(self) -> None:
        """Close every backend."""
        for part in self._parts:
            part.close()


class _Part:
    """One global store: its backend, and the processor that fills it."""

    def __init__(self, application: Application, spec: GlobalStore, directory: Path) -> None:
        with making_state_directory(directory):
            directory.mkdir(parents=True, exist_ok=True)
        self.application = application
        self.spec = spec
        self._lock_file = directory / "lock"
        name = spec.store.backend or application.settings.store_backend
        self._factory = registry().load("store backend", name)
        self._directory = directory / name
        with making_state_directory(self._directory):
            self._directory.mkdir(exist_ok=True)
        self._seen: str | None = None
        self._attempts: dict[tuple[Any, ...], int] = {}
        self._build()

    def _build(self) -> None:
        with self._writing():
            self._backend: StoreBackend = self._factory(self._directory, [self.spec.store.name])
            if not self._backend.trusted():
                self._backend.destroy()
                self._backend = self._factory(self._directory, [self.spec.store.name])
        self._buffer = CommitBuffer(self._backend, self.spec.store.name)
        self.store = self.spec.store.build(self._buffer, _Context(self.application))

    def update(self, log: Log, ends: Mapping[TopicPartition, int]) -> None:
        topic = self.spec.source.topics[0]
        info = log.topics().get(topic)
        if info is None:
            raise UnknownTopicError(
                f"global store {self.spec.store.name!r}: topic {topic!r} does not exist; create it: penstock topics create {topic}"
            )
        partitions = [TopicPartition(topic, number) for number in range(info.partitions)]
        targets = {each: ends[each] for each in partitions if each in ends}
        if len(targets) < len(partitions):
            targets = {**log.end_offsets(partitions), **targets}
        if self._is_behind(targets):
            with self._writing():
                if self._is_behind(targets):
                    self._read(log, partitions, targets)
        version = self._backend.version()
        if version != self._seen:
            # Another process wrote: what the typed store holds as objects is of before.
            self.store.discard()
            self._seen = version

    def _saved(self) -> dict[str, Any]:
        version = self._backend.version()
        saved: dict[str, Any] = json.loads(version) if version else {"positions": {}, "engine": ""}
        return saved

    def _is_behind(self, targets: Mapping[TopicPartition, int]) -> bool:
        positions = self._saved()["positions"]
        return any(positions.get(str(each.partition), 0) < end for each, end in targets.items())

    def _read(self, log: Log, partitions: list[TopicPartition], targets: Mapping[TopicPartition, int]) -> None:
        previous = self._backend.version()
        saved = self._saved()
        starts = log.start_offsets(partitions)
        positions = {each: max(starts[each], saved["positions"].get(str(each.partition), 0)) for each in partitions}
        source, processor = self.spec.source, self.spec.processor
        task = Task(
            TaskId(-1, 0),
            Subtopology(
                -1, (source, processor), {source.name: (processor.name,), processor.name: ()}, (self.spec.store,)
            ),
            self.application.id,
            self.application.settings,
            [(each, source) for each in partitions],
            {self.spec.store.name: self.store},
            {},
            saved=saved["engine"].encode(),
            attempt=lambda failed: self._attempts.get(failed, 0) + 1,
        )
        try:
            for partition in partitions:
                while positions[partition] < targets[partition]:
                    batches = log.fetch(partition, positions[partition], targets[partition], _FETCH_BYTES)
                    if not batches:
                        positions[partition] = targets[partition]
                    for batch in batches:
                        task.add_records(batch)
                        positions[partition] = batch.next_offset
                    while task.process(_CHUNK, may_wait=False) or task.has_work():
                        task.committed()
            # Of what no task sends on, only dead letters: each host that keeps a copy sends its own.
            for output in task.take_outputs():
                log.append(output)
            self.store.flush()
            version = json.dumps(
                {
                    "positions": {str(each.partition): position for each, position in positions.items()},
                    "engine": task.engine_state().decode(),
                }
            )
            self._backend.write({self.spec.store.name: self._buffer.changes()}, previous, version)
            self._buffer.clear()
            self._attempts.clear()
        except BaseException as error:
            if isinstance(error, RetryRequested):
                self._attempts[error.key] = error.failure.attempt
            self.store.discard()
            self._buffer.clear()
            raise
        finally:
            task.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with making_state_directory(self._lock_file.parent):
            file = self._lock_file.open("w")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def close(self) -> None:
        self.store.close()
        self._backend.close()


class _Context:
    """What a global store is told (penstock.store.StoreContext)."""

    task_id = "global"

    def __init__(self, application: Application) -> None:
        self._settings = application.settings
        self.application_id = application.id

    def serde(self, given: str | Serde[Any] | None, store: str) -> Serde[Any]:
        return resolve_serde(given, self._settings.state_serde, f"store {store!r}")

    def stream_time(self) -> int:
        return -1

    def dropped(self, reason: str, count: int = 1) -> None:
        return None
