"""The log in a directory over which `EngineContract` runs applications."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from penstock import Application, OutputBatch, Settings, TopicPartition, Topology
from penstock.plugins.runtime.locations import open_log


class EngineLog:
    """A log of this machine, with what tests do to it: topics, records in, records out."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._settings: dict[str, Any] = {"data_dir": str(directory), "log": "local:log"}
        self._log = open_log(Settings(**self._settings))
        self._timestamps = count(1)

    def __enter__(self) -> EngineLog:
        return self

    def __exit__(self, *error: object) -> None:
        self._log.close()

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._log.create_topic(topic, partitions)

    def application(self, application_id: str, topology: Topology, **settings: Any) -> Application:
        """Return an application over this log, whose keys and values are texts."""
        given = {**self._settings, "key_serde": "str", "value_serde": "str", **settings}
        return Application(application_id, topology, **given)

    def put(self, topic: str, keys: Sequence[str], value: str = "v") -> None:
        """Append a record for each key."""
        names: list[bytes | None] = [key.encode() for key in keys]
        self._log.append(
            OutputBatch(topic, names, [value.encode()] * len(keys), [next(self._timestamps) for _ in keys])
        )

    def read(self, topic: str) -> dict[str, list[str]]:
        """Return the values of each key that a topic has, in their order."""
        found: dict[str, list[str]] = {}
        partitions = [TopicPartition(topic, number) for number in range(self._log.topics()[topic].partitions)]
        ends = self._log.end_offsets(partitions)
        for partition, at in self._log.start_offsets(partitions).items():
            while at < ends[partition]:
                for batch in self._log.fetch(partition, at, ends[partition], 1 << 20):
                    at = batch.next_offset
                    for key, value in zip(batch.keys, batch.values, strict=True):
                        found.setdefault((key or b"").decode(), []).append((value or b"").decode())
        return found
