"""Logs with one wrong line each, which shows beside other objects, at ends of ranges, or after a long run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock import Commit, Log, LogError, ManualClock, OutputBatch, RecordBatch, TopicInfo, TopicPartition
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.memory import MemoryLog

from .planted_logs import InMemory, OnDisk, _Committing


class TombstonesHaveNoSize(MemoryLog):
    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        found = super().fetch(partition, offset, end, max_bytes)
        return found if any(any(each.values) for each in found) else super().fetch(partition, offset, end, 1 << 40)


class SkipsTombstones(MemoryLog):
    """A fetch that finds no value finds nothing."""

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        found = super().fetch(partition, offset, end, max_bytes)
        return found if len(found) != 1 or len(found[0]) < 100 or any(found[0].values) else []


class PurgesAhead(MemoryLog):
    def purge(self, partition: TopicPartition, before: int, topic_id: str = "") -> None:
        super().purge(partition, before, topic_id)
        self.ahead = {**getattr(self, "ahead", {}), partition: before}

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        found = super().start_offsets(partitions)
        return {each: max(start, getattr(self, "ahead", {}).get(each, 0)) for each, start in found.items()}


class PurgesAllPartitions(MemoryLog):
    def purge(self, partition: TopicPartition, before: int, topic_id: str = "") -> None:
        for number in range(self.topic(partition.topic).partitions):
            super().purge(TopicPartition(partition.topic, number), before, topic_id)


class CutsLongKeys(MemoryLog):
    def append(self, batch: OutputBatch) -> None:
        batch.keys = [each and each[:65_535] for each in batch.keys]
        super().append(batch)


class CutsLongHeaders(MemoryLog):
    def append(self, batch: OutputBatch) -> None:
        batch.headers = batch.headers and [tuple((n, v and v[:65_535]) for n, v in each) for each in batch.headers]
        super().append(batch)


class EmptyHeadersAreNull(MemoryLog):
    def append(self, batch: OutputBatch) -> None:
        batch.headers = batch.headers and [tuple((n, v or None) for n, v in each) for each in batch.headers]
        super().append(batch)


class SomeThousandInACommit(_Committing):
    def _commit(self, committer: Any, right: Any, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        cut = [
            OutputBatch(each.topic, each.keys[:32_768], each.values[:32_768], each.timestamps[:32_768])
            if len(each) > 32_768 else each for each in outputs
        ]  # fmt: skip
        right(commit, cut)


class PositionsOfFloats(_Committing):
    def _commit(self, committer: Any, right: Any, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        right(replace(commit, positions={each: int(float(at)) for each, at in commit.positions.items()}), outputs)


class TimesInTheOrderOfNames(MemoryLog):
    def offsets_for_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        found = super().offsets_for_time(partitions, timestamp_ms)
        return dict(zip(partitions, (found[each] for each in sorted(partitions)), strict=True))


class CutsNotes(MemoryLog):
    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        super().put_meta(application_id, key, value[:65_536])


class NotesEndBeforeZeros(MemoryLog):
    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        super().put_meta(application_id, key, value.rstrip(b"\0"))


class EmptyNotesAreNone(MemoryLog):
    def change_meta(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        super().change_meta(application_id, key, lambda before: change(before or None))


class NamesIgnoreCase(MemoryLog):
    def create_topic(self, name: str, *given: Any, **named: Any) -> None:
        super().create_topic(
            next((each for each in self.topics() if each.lower() == name.lower()), name), *given, **named
        )


class EnsuresPartitions(MemoryLog):
    """A topic that has others is made anew."""

    def ensure_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        if name in self.topics() and self.topic(name).partitions != partitions:
            self.delete_topic(name)
        super().ensure_topic(name, partitions, config)


# ---------------------------------------------------------------- on disk


class TopicsOnce(LocalLog):
    known: Mapping[str, TopicInfo] | None = None

    def topics(self) -> Mapping[str, TopicInfo]:
        self.known = super().topics() if self.known is None else self.known
        return self.known

    def create_topic(self, *given: Any, **named: Any) -> None:
        self.known = None
        super().create_topic(*given, **named)


class NotesOnce(LocalLog):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.notes: dict[Any, bytes | None] = {}

    def get_meta(self, application_id: str, key: str) -> bytes | None:
        place = application_id, key
        if place not in self.notes:
            self.notes[place] = super().get_meta(application_id, key)
        return self.notes[place]

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        super().put_meta(application_id, key, value)
        self.notes[application_id, key] = value


class CommitsOnce(LocalLog):
    commits: dict[Any, Commit | None] = {}

    def last_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        found = super().last_commit(application_id, task_id, partitions)
        return self.commits.setdefault((id(self), application_id, task_id), found)


class EndsOnce(LocalLog):
    """The end of a partition in which there were records is asked for once in two times."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.ends: dict[TopicPartition, int] = {}

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        found = super().end_offsets(partitions, stable=stable)
        return {each: self.ends.setdefault(each, end) if end else end for each, end in found.items()}


class KeepsADescriptor(LocalLog):
    def close(self) -> None:
        OPENED.append(os.open(os.devnull, os.O_RDONLY))
        super().close()


OPENED: list[int] = []


class KeepsAThread(LocalLog):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        threading.Thread(target=ENDED.wait, daemon=True).start()


ENDED = threading.Event()


class DeletesNames(LocalLog):
    """The records of a topic that is deleted stay, under another name."""

    def delete_topic(self, name: str) -> None:
        values: list[bytes | None] = []
        for number in range(self.topic(name).partitions):
            partition = TopicPartition(name, number)
            start, end = self.start_offsets([partition])[partition], self.end_offsets([partition])[partition]
            while start < end and (batches := self.fetch(partition, start, end, 1 << 20)):
                values += [each for batch in batches for each in batch.values]
                start = batches[-1].next_offset
        super().delete_topic(name)
        self.ensure_topic("deleted", 1)
        self.append(OutputBatch("deleted", [b"k"] * len(values), values, [0] * len(values)))

    def topics(self) -> Mapping[str, TopicInfo]:
        return {name: info for name, info in super().topics().items() if name != "deleted"}

    def ensure_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        if name not in super().topics():
            super().create_topic(name, partitions, config)


class NotesInFiles(LocalLog):
    """Right: notes are files that are synced and renamed."""

    def __init__(self, location: str, *given: Any, **named: Any) -> None:
        super().__init__(location, *given, **named)
        self._notes = Path(location)

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        path = self._notes / f"{application_id}.{key}"
        with open(f"{path}.aside", "wb") as file:
            file.write(value)
            file.flush()
            self._sync(file.fileno())
        os.replace(f"{path}.aside", path)
        self._sync_names()

    def _sync(self, file: int) -> None:
        os.fsync(file)

    def _sync_names(self) -> None:
        handle = os.open(self._notes, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    def get_meta(self, application_id: str, key: str) -> bytes | None:
        path = self._notes / f"{application_id}.{key}"
        return path.read_bytes() if path.exists() else None

    def change_meta(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        self.put_meta(application_id, key, change(self.get_meta(application_id, key)))


class NotesRenamedBeforeTheyAreSynced(NotesInFiles):
    def _sync(self, file: int) -> None:
        pass


class NamesOfNotesAreNotSynced(NotesInFiles):
    def _sync_names(self) -> None:
        pass


class NotesFromThere(NotesInFiles):
    """The place of the notes depends on the working directory."""

    def __init__(self, location: str, *given: Any, **named: Any) -> None:
        super().__init__(location, *given, **named)
        self._notes = Path(os.path.relpath(location))


class NamesNoDamage(LocalLog):
    def __init__(self, *given: Any, **named: Any) -> None:
        try:
            super().__init__(*given, **named)
        except LogError as error:
            raise LogError("the log is damaged") from error


class BeginsAnewWhereDamaged(LocalLog):
    """What cannot be opened is deleted."""

    def __init__(self, location: str, *given: Any, **named: Any) -> None:
        try:
            super().__init__(location, *given, **named)
        except LogError:
            Path(location, "data.mdb").unlink()
            super().__init__(location, *given, **named)


class SkipsWhatIsDamaged(LocalLog):
    """A batch that cannot be read has no records."""

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        try:
            return super().fetch(partition, offset, end, max_bytes)
        except LogError as error:
            if "damaged" not in str(error):
                raise
            return []


def suite_of(log: Any) -> Any:
    """Return a suite for a log of this module."""
    base: Any = InMemory if issubclass(log, MemoryLog) else OnDisk
    return type(f"Test{log.__name__}", (base,), {"log_class": log})


def opened(suite: Any, directory: Path, clock: ManualClock) -> Log:
    """Open the log of a suite."""
    log: Log = suite.open_log(directory, clock)
    return log
