"""A log in a directory of the test's, with what tests do to it: topics, records in, records out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock import Application, OutputBatch, Settings, TopicPartition, Topology, TopologyBuilder
from penstock.log import Log
from penstock.plugins.engine.task.locations import open_log

from ..waiting import readable_end


class Surroundings:
    def __init__(self, directory: Path, log: str = "local:log") -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.log_name = log
        self.log: Log = open_log(Settings(data_dir=str(directory), log=log))

    def __enter__(self) -> Surroundings:
        return self

    def __exit__(self, *error: object) -> None:
        self.log.close()

    def application(self, application_id: str, topology: Topology | TopologyBuilder, **settings: Any) -> Application:
        return Application(application_id, topology, data_dir=str(self.directory), log=self.log_name, **settings)

    def create(self, **topics: int) -> None:
        for name, partitions in topics.items():
            self.log.create_topic(name, partitions)

    def put(
        self, topic: str, records: Iterable[tuple[str | None, str | None, int]], partition: int | None = None
    ) -> None:
        """Append (key, value, timestamp) records, to one partition if it is given."""
        rows = list(records)
        self.log.append(
            OutputBatch(
                topic,
                [None if key is None else key.encode() for key, _, _ in rows],
                [None if value is None else value.encode() for _, value, _ in rows],
                [timestamp for _, _, timestamp in rows],
                partitions=None if partition is None else [(partition,)] * len(rows),
            )
        )

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self.log.topics()[topic].partitions)]

    def read(self, topic: str) -> dict[int, list[tuple[str | None, str | None, int]]]:
        """Return all records of a topic by partition."""
        found: dict[int, list[tuple[str | None, str | None, int]]] = {}
        for partition in self.partitions(topic):
            start, end = self.log.start_offsets([partition])[partition], readable_end(self.log, partition)
            rows = found[partition.partition] = []
            while start < end:
                for batch in self.log.fetch(partition, start, end, 1 << 24):
                    start = batch.next_offset
                    for key, value, timestamp in zip(batch.keys, batch.values, batch.timestamps, strict=True):
                        rows.append((_text(key), _text(value), timestamp))
        return found

    def values_by_key(self, topic: str) -> dict[str | None, list[str | None]]:
        """Return each key's values in the order of the log."""
        found: dict[str | None, list[str | None]] = {}
        for rows in self.read(topic).values():
            for key, value, _ in rows:
                found.setdefault(key, []).append(value)
        return found

    def everything(self, application_id: str, *topics: str) -> Any:
        """Return what a zombie or a retry must not change: records and positions."""
        return (
            {topic: self.read(topic) for topic in topics},
            {topic: self.log.committed(application_id, self.partitions(topic)) for topic in topics},
        )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
