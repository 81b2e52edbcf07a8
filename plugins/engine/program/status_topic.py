"""StatusTopic: the internal topic of an application in which its drivers keep the status of the latest run."""

from __future__ import annotations

import zlib

from penstock import Log, OutputBatch, TopicPartition
from penstock.plugins.engine.task.reading import read_up_to

from .run_status import RunStatus

_SUFFIX = "-penstock-status"
_KEY = b"status"
# All records have one key, so compaction leaves the last one, for ever.
_CONFIG = {"cleanup.policy": "compact", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.1"}
_LATEST = 4
"""So many of the latest records are looked at: one of a driver that was frozen may follow its successor's."""


def status_topic(application_id: str) -> str:
    """Return the topic's name."""
    return application_id + _SUFFIX


class StatusTopic:
    """Writes and reads the status of an application's runs."""

    def __init__(self, log: Log, application_id: str) -> None:
        self._log = log
        self._name = status_topic(application_id)
        self._is_there = False

    def write(self, status: RunStatus) -> None:
        """Keep a status; the topic is made when it is not there."""
        if not self._exists():
            self._log.ensure_topic(self._name, 1, _CONFIG)
            self._is_there = True
        # A thousand tasks take some hundred kilobytes of text, and Kafka takes a megabyte a record.
        value = zlib.compress(status.to_json().encode(), 1)
        self._log.append(OutputBatch(self._name, [_KEY], [value], [status.written_ms]))

    def read(self) -> RunStatus | None:
        """Return the status of the latest run; None when no driver has written one."""
        if not self._exists():
            return None
        partition = TopicPartition(self._name, 0)
        end = self._log.end_offsets([partition])[partition]
        at = max(self._log.start_offsets([partition])[partition], end - _LATEST)
        found = [
            RunStatus.from_json(zlib.decompress(value).decode())
            for batch in read_up_to(self._log, partition, at, end)
            for value in batch.values
            if value
        ]
        return max(reversed(found), key=lambda status: status.number, default=None)

    def _exists(self) -> bool:
        self._is_there = self._is_there or self._name in self._log.topics()
        return self._is_there
