"""Ids of topics, as Kafka's admin API returns them (KIP-516)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException

from .failures import is_unknown_topic


def ids_in(futures: Mapping[str, Future[Any]]) -> dict[str, str]:
    """Return the ids of those described topics that exist. Raises KafkaException when the request failed."""
    found = {}
    for name, future in futures.items():
        try:
            found[name] = id_of(future.result())
        except KafkaException as exception:
            if not is_unknown_topic(exception):
                raise
    return found


def id_of(found: Any) -> str:
    """Return the id in a topic's description; "" where the broker has none, before 2.8."""
    topic_id = found.topic_id
    return str(topic_id) if topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits() else ""
