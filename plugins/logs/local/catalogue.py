"""The topics of a local log, kept in this process until they change."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import msgpack

from penstock import TopicInfo, TopicPartition

from ..messages import check_partition, unknown_topic
from ..partitioner import Partitioner
from ..topics import TopicSettings, parse_config
from .environment import Environment
from .layout import number, number_row, of_older_version
from .transaction import Transaction


@dataclass(frozen=True)
class Topic:
    """A topic; `id` is never used again, so a topic that is created again has no rows of the deleted one."""

    id: int
    info: TopicInfo
    settings: TopicSettings
    partitioner: Partitioner

    def to_bytes(self) -> bytes:
        """Return the topic's row."""
        row: bytes = msgpack.packb([self.id, self.info.partitions, dict(self.info.config), self.info.internal])
        return row

    @classmethod
    def make(cls, topic_id: int, info: TopicInfo) -> Topic:
        """Return a topic with its settings parsed."""
        return cls(topic_id, info, parse_config(info.name, info.config), Partitioner(info.partitions))


class CatalogueTopics(dict[str, Topic]):
    """Topics by name, as of one generation of the log's catalogue; never changed."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def named(self, name: str) -> Topic:
        """Return a topic. Raises UnknownTopicError."""
        topic = self.get(name)
        if topic is None:
            raise unknown_topic(name, self, f"the local log {self._where}")
        return topic

    def of(self, partition: TopicPartition) -> Topic:
        """Return the topic of a partition. Raises UnknownTopicError, or LogError when it has no such partition."""
        topic = self.named(partition.topic)
        check_partition(partition.topic, partition.partition, topic.info.partitions)
        return topic


class Catalogue:
    """Reads the topics again when their generation has changed; otherwise it costs one small look-up. Thread-safe."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._read = -1, CatalogueTopics(environment.directory)

    def topics(self, transaction: Transaction) -> CatalogueTopics:
        """Return the topics as a transaction sees them."""
        generation = number(transaction.get("system", b"generation"))
        known, topics = self._read
        if generation != known:
            topics = self._load(transaction, topics)
            self._read = generation, topics
        return topics

    def put(self, transaction: Transaction, topic: Topic) -> None:
        """Add a topic, or replace its settings; its public id stays."""
        transaction.put("topics", topic.info.name.encode(), topic.to_bytes())
        # The counter starts again in a log that is deleted and created again.
        token = secrets.token_hex(8).encode()
        transaction.put("system", _token_key(topic.id), token, overwrite=False)
        self._next(transaction, b"generation")

    def delete(self, transaction: Transaction, topic: Topic) -> None:
        """Remove a topic."""
        transaction.delete("topics", topic.info.name.encode())
        transaction.delete("system", _token_key(topic.id))
        self._next(transaction, b"generation")

    def next_id(self, transaction: Transaction) -> int:
        """Return a number that no topic and no committer of this log ever had."""
        return self._next(transaction, b"next_id")

    def _next(self, transaction: Transaction, counter: bytes) -> int:
        following = number(transaction.get("system", counter)) + 1
        transaction.put("system", counter, number_row(following))
        return following

    def _load(self, transaction: Transaction, before: CatalogueTopics) -> CatalogueTopics:
        loaded = CatalogueTopics(self._environment.directory)
        with transaction.cursor("topics") as cursor:
            for key, row in cursor:
                name = bytes(key).decode()
                topic_id, partitions, config, internal = msgpack.unpackb(row)
                old = before.get(name)
                # An unchanged topic keeps its object, because its partitioner caches keys.
                loaded[name] = (
                    old
                    if old is not None and old.id == topic_id
                    else Topic.make(
                        topic_id, TopicInfo(name, partitions, config, internal, self._topic_id(transaction, topic_id))
                    )
                )
        return loaded

    def _topic_id(self, transaction: Transaction, topic_id: int) -> str:
        """Return the topic's public id."""
        token = transaction.get("system", _token_key(topic_id))
        if token is None:
            raise of_older_version(self._environment.directory, "a topic")
        return f"{topic_id}-{bytes(token).decode()}"


def _token_key(topic_id: int) -> bytes:
    return b"topic-token-%d" % topic_id
