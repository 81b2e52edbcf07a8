"""Consumer groups of a cluster: their positions, and whether other programs have joined them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

from penstock.errors import LogError

from .admin import Ask
from .clients import Clients
from .failures import error_of

_log = logging.getLogger("penstock.kafka")

RENEWAL_SECONDS = 12 * 3600.0
"""The age at which a task's commit is repeated where the brokers do not say how long they keep it."""
_RETENTION = "offsets.retention.minutes"
_RENEWALS = 4
"""How often a commit is repeated in the time for which brokers keep it."""


class Groups:
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
        asked = [ConsumerGroupTopicPartitions(group)]
        found = self._one(
            group,
            f"reading the positions of {group!r}",
            lambda client, seconds: client.list_consumer_group_offsets(
                asked, require_stable=stable, request_timeout=seconds
            ),
            _without_errors,
        )
        return [] if found is None else [each for each in found.topic_partitions if each.offset >= 0]

    def check_members(self, group: str) -> None:
        """Raise LogError if a group has members: penstock joins no group, and a member would move its positions."""
        found = self._described(group)
        if found is not None and found.members:
            raise self._has_members(group)

    def delete(self, group: str) -> None:
        """Delete a group and its offsets. Raises LogError when the group has members."""
        self._one(
            group,
            f"deleting the positions of {group!r}",
            lambda client, seconds: client.delete_consumer_groups([group], request_timeout=seconds),
        )

    def _described(self, group: str) -> Any:
        """Return the brokers' description of a group; None if they have no such group."""
        return self._one(
            group,
            f"looking for members of {group!r}",
            lambda client, seconds: client.describe_consumer_groups([group], request_timeout=seconds),
        )

    def _one(self, group: str, doing: str, ask: Ask, check: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """Return the answer to a request about one group, if it passes `check`; None if there is no such group."""
        try:
            return self._admin.call(doing, ask, lambda futures: check(next(iter(futures.values())).result()))
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


def _without_errors(answer: Any) -> Any:
    """Return a group's positions. Raises KafkaException if one has an error instead: its transaction is open."""
    for each in answer.topic_partitions:
        if each.error is not None:
            raise KafkaException(each.error)
    return answer


def renewal_seconds(clients: Clients) -> float:
    """Return the age at which a task repeats its commit: brokers forget the offsets of a group without members.

    They do so `offsets.retention.minutes` after the commit. Raises LogError when no broker answers.
    """
    doing = f"reading the brokers' {_RETENTION}"
    broker = str(min(clients.admin.list_topics(doing).brokers))
    resource = ConfigResource(ResourceType.BROKER, broker)
    try:
        config = clients.admin.one(
            doing, lambda client, seconds: client.describe_configs([resource], request_timeout=seconds)
        )
        return min(RENEWAL_SECONDS, float(config[_RETENTION].value) * 60 / _RENEWALS)
    except (KafkaException, KeyError, TypeError, ValueError) as error:
        # Most likely this client may not read it.
        _log.debug("%s: %s: %s; commits are repeated after %.0f s", clients.where, doing, error, RENEWAL_SECONDS)
        return RENEWAL_SECONDS
