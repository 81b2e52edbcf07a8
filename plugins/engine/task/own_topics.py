"""OwnTopic: the internal topics of an application in which no task's records are; each has one partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock import Log


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
