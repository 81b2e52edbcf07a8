"""The changelog `acme.topics`: the rows of stores as they are, in compacted topics of the log."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from penstock import ChangelogError, Log, LogChangelog, OutputBatch, Restore, TopicPartition
from penstock.store import Change, Changes
from penstock.store.kept_store import Layout

_FETCHED_BYTES = 1024 * 1024
_PATIENCE_SECONDS = 60


class RowTopics(LogChangelog):
    """A version's name ends in where each partition ended before its delta, which shows that records are lost.

    A copy at another version than the last one is restored afresh.
    """

    topic_config = {"cleanup.policy": "compact"}

    def __init__(self, location: str, application_id: str, task_id: str, *, log: Log, stores: Layout) -> None:
        self._log = log
        self._application_id = application_id
        number = int(task_id.rpartition("_")[2])
        self._partitions = {
            store: TopicPartition(self.topic_of(application_id, store), number) for store in sorted(stores)
        }

    @staticmethod
    def topic_of(application_id: str, store: str) -> str:
        """Return the name of a store's topic."""
        return f"{application_id}-{store}-rows"

    def version_suffix(self, previous: str | None) -> str:
        """Return the ends of the partitions."""
        ends, starts = self._log.end_offsets(self._all, stable=False), self._starts()
        used = [str(each) for each in self._all if ends[each] > starts[each]]
        if previous is None and used:
            raise ChangelogError(f"there is no commit, and a history in {', '.join(used)}")
        return "-" + "_".join(str(ends[each]) for each in self._all)

    def records(self, changes: Changes) -> list[OutputBatch]:
        """Return each row as a record."""
        now_ms = time.time_ns() // 1_000_000
        batches = []
        for store, rows in changes.items():
            topic, number = self._partitions[store]
            keys: list[bytes | None] = [key for key, _ in rows]
            values = [value for _, value in rows]
            batches.append(OutputBatch(topic, keys, values, [now_ms] * len(rows), partitions=[[number] for _ in rows]))
        return batches

    def begin(self, stores: Collection[str], entries: Iterable[tuple[str, bytes, bytes]]) -> list[OutputBatch]:
        """Return the entries, and tombstones for the other keys of the topics."""
        ends = self._settled_ends()
        rows: dict[str, dict[bytes, bytes | None]] = {store: dict.fromkeys(self._read(store, ends)) for store in stores}
        for store, key, value in entries:
            if store in rows:
                rows[store][key] = value
        return self.records({store: sorted(each.items()) for store, each in rows.items()})

    def restore(self, target: str, have: str | None) -> Restore:
        """Plan to read everything."""
        ends = self._settled_ends()
        _, _, offsets = target.rpartition("-")
        for each, offset in zip(self._all, offsets.split("_"), strict=False):
            if ends[each] < int(offset or 0):
                raise ChangelogError(f"{each} ends at {ends[each]}, and version {target} began at {offset}")
        return Restore(have, iter(())) if have == target else Restore(None, self._steps(target, ends))

    def close(self) -> None:
        """The log is closed by its owner."""

    @property
    def _all(self) -> list[TopicPartition]:
        return list(self._partitions.values())

    def _starts(self) -> Mapping[TopicPartition, int]:
        starts, reset = self._log.start_offsets(self._all), self._log.committed(self._application_id, self._all)
        return {each: max(starts[each], reset[each] or 0) for each in self._all}

    def _settled_ends(self) -> Mapping[TopicPartition, int]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (ends := self._log.end_offsets(self._all, stable=False)) != self._log.end_offsets(self._all):
            if time.monotonic() > deadline:
                raise ChangelogError(f"an open transaction of another program holds back {', '.join(map(str, ends))}")
            time.sleep(0.01)
        return ends

    def _read(self, store: str, ends: Mapping[TopicPartition, int]) -> dict[bytes, bytes | None]:
        partition = self._partitions[store]
        rows: dict[bytes, bytes | None] = {}
        at, end = self._starts()[partition], ends[partition]
        while at < end:
            batches = self._log.fetch(partition, at, end, _FETCHED_BYTES)
            for batch in batches:
                rows.update(
                    (key, value) for key, value in zip(batch.keys, batch.values, strict=True) if key is not None
                )
            at = batches[-1].next_offset if batches else end
        return rows

    def _steps(self, target: str, ends: Mapping[TopicPartition, int]) -> Iterator[tuple[Changes, str]]:
        for number, store in enumerate(self._partitions):
            rows: list[Change] = sorted(self._read(store, ends).items())
            if rows:
                yield {store: rows}, f"restoring:{target}:{number}"
        yield {}, target
