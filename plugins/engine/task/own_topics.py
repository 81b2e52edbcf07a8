"""OwnTopic: the internal topics of an application in which no task's records are. One has the requests to pause."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from penstock import Log, OutputBatch, TopicPartition

from .locations import read_up_to
from .topic_ids import EVERY_SECONDS

LEAD_MS = round(EVERY_SECONDS * 1000) + 1_500
"""So long before a pause it has to be asked for: processes with tasks look every `EVERY_SECONDS`."""
LONGEST_MS = 10_000
"""Maximum length of a pause in milliseconds; longer ones are cut."""
_KEY = b"pause"


@dataclass(frozen=True)
class OwnTopic:
    """A topic whose name is an application's id and `suffix`; `config`: the settings with which it is made."""

    suffix: str
    config: Mapping[str, str]

    def of(self, application_id: str) -> str:
        """Return the topic's name."""
        return application_id + self.suffix

    def make(self, application_id: str, log: Log) -> None:
        """Create the topic unless it is there."""
        log.ensure_topic(self.of(application_id), 1, self.config)


HEARTBEATS = OwnTopic(
    "-penstock-heartbeats",
    {
        "cleanup.policy": "delete",
        "retention.ms": "600000",
        "segment.ms": "600000",
        "message.timestamp.type": "LogAppendTime",
    },
)
# All records have one key, so compaction leaves the last one, for ever.
_LAST_ONLY = {"cleanup.policy": "compact", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.1"}
STATUS = OwnTopic("-penstock-status", _LAST_ONLY)
REQUESTS = OwnTopic("-penstock-requests", _LAST_ONLY)


def topics_beside(application_id: str) -> set[str]:
    """Return the names of these topics of an application, whether they are there or not."""
    return {each.of(application_id) for each in (HEARTBEATS, STATUS, REQUESTS)}


@dataclass(frozen=True)
class Pause:
    """A wall-clock time span (ms) in which tasks have committed their work and process nothing."""

    from_ms: int
    until_ms: int


def ask_for_pause(log: Log, application_id: str, pause: Pause) -> None:
    """Request a pause, in place of the last request. Raises LogError.

    It ends by itself and has no answer: the requester sees from the commits whether all tasks rest.
    """
    REQUESTS.make(application_id, log)
    text = json.dumps({"from_ms": pause.from_ms, "until_ms": pause.until_ms})
    log.append(OutputBatch(REQUESTS.of(application_id), [_KEY], [text.encode()], [pause.from_ms]))


class PauseWatch:
    """Reads the pause that was asked for last. Two threads use it: one calls `look`, the other one `is_on`."""

    def __init__(self, log: Log, application_id: str, seconds: Callable[[], float]) -> None:
        """`seconds` is a stopwatch."""
        self._log = log
        self.topic = REQUESTS.of(application_id)
        self._partition = TopicPartition(self.topic, 0)
        self._seconds = seconds
        self._end = 0
        self._asked: Pause | None = None
        self._begun: Pause | None = None
        self._begun_at = 0.0

    def look(self, topics: Collection[str]) -> None:
        """Read the last request, if there is another one, and `topics` has its topic. Raises LogError."""
        if self.topic not in topics:
            return
        end = self._log.end_offsets([self._partition])[self._partition]
        if end != self._end:
            start = max(self._log.start_offsets([self._partition])[self._partition], end - 1)
            for batch in read_up_to(self._log, self._partition, start, end):
                for value in batch.values:
                    self._asked = _pause(value)
            self._end = end

    def is_on(self, now_ms: int) -> bool:
        """Return whether tasks rest now; `now_ms` is the wall clock."""
        pause = self._asked
        if pause is None or not pause.from_ms <= now_ms < pause.until_ms:
            return False
        if pause != self._begun:
            self._begun, self._begun_at = pause, self._seconds()
        # The wall clock may be set back meanwhile.
        return self._seconds() - self._begun_at < min(pause.until_ms - pause.from_ms, LONGEST_MS) / 1000


def _pause(value: bytes | None) -> Pause | None:
    """Return a request; None for an unknown form of a later version."""
    try:
        data = json.loads(value or b"")
        return Pause(int(data["from_ms"]), int(data["until_ms"]))
    except (ValueError, KeyError, TypeError):
        return None
