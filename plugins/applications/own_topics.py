"""topics_beside: the internal topics of an application in which no task's records are."""

from __future__ import annotations

from penstock.plugins.runtime.pause_requests import requests_topic

from .heartbeat_topic import heartbeat_topic
from .status_topic import status_topic


def topics_beside(application_id: str) -> set[str]:
    """Return the names of the topics with heartbeats, the status and requests, whether they are there or not."""
    return {heartbeat_topic(application_id), status_topic(application_id), requests_topic(application_id)}
