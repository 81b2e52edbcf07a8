"""Consumer groups of a cluster: their positions, and whether other programs have joined them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from penstock import LogError

from .admin import Ask
from .clients import Clients
from .failures import error_of

_log = logging.getLogger("penstock.kafka")

RENEWAL_SECONDS = 12 * 3600.0
"""The age at which a task's commit is repeated where the brokers do not say how long they keep it."""
_RETENTION = "offsets.retention.minutes"
_RENEWALS = 4
"""How often a commit is repeated in the time for which brokers keep it."""


class ConsumerGroups:
    """The consumer groups of one cluster. Thread-safe. Every method raises LogError when a request fails."""

    def __init__(self, clients: Clients) -> None:
        self._where = clients.where
        self._patience = clients.patience
        self._admin = clients.admin

    def positions(self, group: str, *, stable: bool) -> list[KafkaPartition]:
        """Return every committed offset of a group, with its metadata.

        `stable`: wait until no transaction with offsets of the group is open.
        """
        # This request makes a new cluster create its coordinators. Without a coordinator, librdkafka crashes on the
        # answer to the next request.
        self._described(group)
        found = self._one(
            group,
            f"reading the positions of {group!r}",
            AdminClient.list_consumer_group_offsets,
            ConsumerGroupTopicPartitions(group),
            require_stable=stable,
        )
        return [] if found is None else [partition for partition in found.topic_partitions if partition.offset >= 0]

    def check_members(self, group: str) -> None:
        """Raise LogError if a group has members: penstock joins no group, and a member would move its positions."""
        found = self._described(group)
        if found is not None and found.members:
            raise self._has_members(group)

    def delete(self, group: str) -> None:
        """Delete a group and its offsets. Raises LogError when the group has members."""
        self._one(group, f"deleting the positions of {group!r}", AdminClient.delete_consumer_groups, group)

    def _described(self, group: str) -> Any:
        """Return the brokers' description of a group; None if they have no such group."""
        return self._one(group, f"looking for members of {group!r}", AdminClient.describe_consumer_groups, group)

    def _one(self, group: str, doing: str, ask: Ask, asked: object, **options: object) -> Any:
        """Return the answer to a request about one group; None if there is no such group."""
        try:
            return self._admin.call(doing, ask, [asked], _answer, **options)
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            if error is not None and error.code() == KafkaError.NON_EMPTY_GROUP:
                raise self._has_members(group) from exception
            raise self._patience.failed(doing, exception) from exception

    def _has_members(self, group: str) -> LogError:
        return LogError(
            f"{self._where}: the consumer group {group!r} has members, so other programs use the application's id "
            "as their group: stop them, or give the application another id"
        )


def _answer(futures: Mapping[str, Future[Any]]) -> Any:
    """Return the answer. Raises KafkaException if a position in it has an error instead: its transaction is open."""
    answer = next(iter(futures.values())).result()
    for each in getattr(answer, "topic_partitions", ()):
        if each.error is not None:
            raise KafkaException(each.error)
    return answer


def renewal_seconds(clients: Clients) -> float:
    """Return the age at which a task repeats its commit. Raises LogError when no broker answers."""
    kept = retention_seconds(clients)
    return RENEWAL_SECONDS if kept is None else min(RENEWAL_SECONDS, kept / _RENEWALS)


def retention_seconds(clients: Clients) -> float | None:
    """Return the seconds until brokers forget a commit of a group without members; None if they do not say."""
    doing = f"reading the brokers' {_RETENTION}"
    broker = str(min(clients.admin.list_topics(doing).brokers))
    try:
        config = clients.admin.one(doing, AdminClient.describe_configs, [ConfigResource(ResourceType.BROKER, broker)])
        return float(config[_RETENTION].value) * 60
    except (KafkaException, KeyError, TypeError, ValueError) as error:
        # Most likely this client may not read it.
        _log.debug("%s: %s: %s; commits are repeated after %.0f s", clients.where, doing, error, RENEWAL_SECONDS)
        return None
