"""The internal topic of an application through which its task hosts send heartbeats in continuous mode."""

from __future__ import annotations

from penstock import Log

_SUFFIX = "-penstock-heartbeats"
_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "600000",
    "segment.ms": "600000",
    "message.timestamp.type": "LogAppendTime",
}


def heartbeat_topic(application_id: str) -> str:
    """Return the topic's name."""
    return application_id + _SUFFIX


def make_heartbeat_topic(log: Log, application_id: str) -> None:
    """Create the topic unless it is there."""
    name = heartbeat_topic(application_id)
    if name not in log.topics():
        log.create_topic(name, 1, _CONFIG, internal=True)
