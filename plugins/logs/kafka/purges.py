"""Purges: deletes processed records, by requests that are collected and sent about once a second."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from penstock import TopicPartition

from .admin import Admin, ids_in

_log = logging.getLogger("penstock.kafka")

_PURGE_SECONDS = 1.0
_LOOK_SECONDS = 1.0
"""How long brokers may take to say which topics there are; without an answer nothing is deleted for now."""


class Purges:
    """Deletes records below offsets. Thread-safe.

    A request names an offset in a topic, and the topic may be deleted and made again before it is sent, also while this
    process is frozen. So the ids of the topics are looked at just before.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._lock = threading.Lock()
        self._wanted: dict[TopicPartition, int] = {}
        self._ids: dict[str, str] = {}  # which topics the offsets are of
        self._sent_at = 0.0
        self._done: dict[TopicPartition, int] = {}
        self._end: Callable[[], Mapping[Any, Future[Any]]] = dict

    def add(self, partition: TopicPartition, before: int, topic_id: str = "") -> None:
        """Delete records below an offset, of the topic with this id; "": of any.

        A partition whose records were deleted up to there needs no request.
        """
        with self._lock:
            if topic_id:
                self._ids[partition.topic] = topic_id
            if before > max(self._wanted.get(partition, 0), self._done.get(partition, 0)):
                self._wanted[partition] = before
            if not self._wanted or time.monotonic() < self._sent_at + _PURGE_SECONDS:
                return
            self._sent_at = time.monotonic()
            for asked, future in self._end().items():
                if future.exception() is None:
                    self._done[TopicPartition(asked.topic, asked.partition)] = future.result().low_watermark
            self._end = dict
            purges = {each: offset for each, offset in self._wanted.items() if offset > self._done.get(each, 0)}
            self._wanted = {}
            try:
                if purges := self._of_same_topics(purges):
                    self._end = self._admin.start(AdminClient.delete_records, _records_below(purges))
            except KafkaException as exception:
                _log.debug("purging %s: %s", purges, exception)

    def flush(self, seconds: float = 5.0) -> None:
        """Send the collected requests, and wait for the answer."""
        with self._lock:
            purges, self._wanted = self._wanted, {}
            self._end = dict
        try:
            if purges and (purges := self._of_same_topics(purges)):
                self._admin.once(AdminClient.delete_records, _records_below(purges), lambda futures: None, seconds)
        except KafkaException as exception:
            _log.debug("purging %s: %s", purges, exception)

    def forget(self, topic: str) -> None:
        """Drop the requests for a topic that is being deleted: it begins at 0 when it is made again."""
        with self._lock:
            self._end = dict
            self._ids.pop(topic, None)
            for offsets in (self._wanted, self._done):
                for each in [each for each in offsets if each.topic == topic]:
                    del offsets[each]

    def _of_same_topics(self, purges: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the requests for topics that still are the ones that the offsets are of. Raises KafkaException."""
        expected = {each.topic: self._ids[each.topic] for each in purges if each.topic in self._ids}
        if not expected:
            return dict(purges)
        ids = self._admin.once(AdminClient.describe_topics, TopicCollection(list(expected)), ids_in, _LOOK_SECONDS)
        others = {name for name, expected_id in expected.items() if ids.get(name) != expected_id}
        return {each: offset for each, offset in purges.items() if each.topic not in others}


def _records_below(purges: Mapping[TopicPartition, int]) -> list[KafkaPartition]:
    return [KafkaPartition(each.topic, each.partition, before) for each, before in purges.items()]
