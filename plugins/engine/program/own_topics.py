"""topics_beside: the internal topics of an application in which no task's records are."""

from __future__ import annotations

from penstock import Log
from penstock.plugins.engine.task.pause_requests import requests_topic

from .run_status import status_topic


def topics_beside(application_id: str) -> set[str]:
    """Return the names of the topics with heartbeats, the status and requests, whether they are there or not."""
    return {heartbeat_topic(application_id), status_topic(application_id), requests_topic(application_id)}


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
    log.ensure_topic(heartbeat_topic(application_id), 1, _CONFIG)
