"""Topics of a cluster: lists, creates and deletes them, and returns their partitions' start and end offsets."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from penstock import LogError, TopicExistsError, TopicInfo, TopicPartition, UnknownTopicError
from penstock.support.names import did_you_mean

from ..messages import check_partition, unknown_topic
from ..topics import CONFIG_DEFAULTS, CONFIG_IGNORED, check_name
from .admin import Admin, id_of, ids_in
from .clients import Clients
from .failures import describe, error_of, is_unknown_topic, is_without_brokers

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
                for each in [offset for offset in offsets if offset.topic == topic]:
                    del offsets[each]

    def _of_same_topics(self, purges: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the requests whose topics are still the ones with these offsets. Raises KafkaException."""
        expected = {purge.topic: self._ids[purge.topic] for purge in purges if purge.topic in self._ids}
        if not expected:
            return dict(purges)
        ids = self._admin.once(AdminClient.describe_topics, TopicCollection(list(expected)), ids_in, _LOOK_SECONDS)
        others = {name for name, expected_id in expected.items() if ids.get(name) != expected_id}
        return {each: offset for each, offset in purges.items() if each.topic not in others}


def _records_below(purges: Mapping[TopicPartition, int]) -> list[KafkaPartition]:
    return [KafkaPartition(each.topic, each.partition, before) for each, before in purges.items()]


_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_CACHE_SECONDS = 2.0
SETTLE_SECONDS = 1.0
"""How long a topic may be missing in a broker's list after the controller has created it."""
_BROKERS_AT_ONCE = 8
_BROKER_SECONDS = 5.0
"""Seconds for a broker to list a created topic; a broker that does not answer is left out."""
_ANSWER_SECONDS = 5.0
"""How long leaders may take to say where their partitions end, where nobody is to wait for one that is away."""
_AGAIN_SECONDS = 0.2
"""How long to wait before a topic is created again that the controller has no broker for."""
_KAFKAS_OWN = frozenset(["__consumer_offsets", "__transaction_state", "__share_group_state", "__remote_log_metadata"])
_OWN_SUFFIXES = ("-repartition", "-changelog", "-penstock-status", "-penstock-heartbeats", "-penstock-requests")
NOTES_SUFFIX = "-penstock-notes"
"""The end of the name of the topic that keeps an application's notes and its lease."""


class KafkaTopics:
    """The topics of one cluster. Thread-safe."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._patience = clients.patience
        self._admin = clients.admin
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._counted_at = -_CACHE_SECONDS
        self._missed_at: dict[str, float] = {}
        """When each topic was found to be unknown."""
        self.purges = Purges(clients.admin)

    # ------------------------------------------------------------------ what there is

    def all(self) -> Mapping[str, TopicInfo]:
        """Return all topics but Kafka's own and the topics of notes; their settings are requested on first access."""
        counts = self.counts(fresh=True)
        settings = cache(partial(self.settings, list(counts)))
        owners = self._owners(counts)
        return {
            name: TopicInfo(name, count, _TopicSettings(name, settings), _is_internal(name, owners))
            for name, count in counts.items()
            if not name.endswith(NOTES_SUFFIX) and name not in _KAFKAS_OWN
        }

    def one(self, name: str) -> TopicInfo:
        """Return one topic with its id; brokers before 2.8 have none."""
        doing = f"describing topic {name!r}"
        try:
            found = self._admin.one(doing, AdminClient.describe_topics, TopicCollection([name]))
        except KafkaException as exception:
            if is_unknown_topic(exception):
                raise self._unknown(name, self.counts(fresh=True)) from exception
            raise self._patience.failed(doing, exception) from exception
        return TopicInfo(
            name,
            len(found.partitions),
            _TopicSettings(name, cache(partial(self.settings, [name]))),
            name.endswith(_OWN_SUFFIXES) and _is_internal(name, self._owners(self.counts())),
            id_of(found),
        )

    def ids(self, names: Collection[str]) -> dict[str, str]:
        """Return the ids of existing topics; brokers before 2.8 have none."""
        if not names:
            return {}
        doing = "asking for the ids of topics"
        with self._patience.naming(doing):
            return self._admin.call(doing, AdminClient.describe_topics, TopicCollection(list(names)), ids_in)

    def counts(self, *, fresh: bool = False) -> dict[str, int]:
        """Return the number of partitions of each topic; up to two seconds old unless `fresh`."""
        if not fresh and time.monotonic() < self._counted_at + _CACHE_SECONDS:
            return self._counts
        listed = self._admin.list_topics("listing topics")
        counts = {name: len(topic.partitions) for name, topic in listed.topics.items() if topic.error is None}
        # The attribute is not returned: another thread may just have set it to an older answer of the broker.
        self._counts = counts
        self._counted_at = time.monotonic()
        return counts

    def count(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises UnknownTopicError."""
        return self._count(topic, self.counts())

    def check(self, partitions: Sequence[TopicPartition], *, fresh: bool = False) -> None:
        """Raise UnknownTopicError or LogError unless all partitions are there; see `counts` for `fresh`."""
        counts = self.counts(fresh=fresh)
        for topic, partition in partitions:
            check_partition(topic, partition, self._count(topic, counts))

    def _count(self, topic: str, counts: Mapping[str, int]) -> int:
        found = counts.get(topic)
        if found is None:
            found = self.counts(fresh=True).get(topic)
        if found is None and time.monotonic() >= self._missed_at.get(topic, -_CACHE_SECONDS) + _CACHE_SECONDS:
            # A topic that was just created is not in the list of every broker yet.
            time.sleep(SETTLE_SECONDS)
            found = self.counts(fresh=True).get(topic)
        if found is None:
            self._missed_at[topic] = time.monotonic()
            raise self._unknown(topic, self._counts)
        self._missed_at.pop(topic, None)
        return found

    def _unknown(self, topic: str, counts: Mapping[str, int]) -> UnknownTopicError:
        others = {name for name in counts if not name.endswith(NOTES_SUFFIX)} - _KAFKAS_OWN
        return unknown_topic(topic, others, self._clients.where)

    def _owners(self, counts: Mapping[str, int]) -> set[str]:
        """Return the applications that have run here."""
        return {name.removesuffix(NOTES_SUFFIX) for name in counts if name.endswith(NOTES_SUFFIX)}

    def settings(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the settings that topics were given, without the broker's defaults."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        doing = "reading the settings of topics"
        with self._patience.naming(doing):
            return self._admin.call(doing, AdminClient.describe_configs, resources, _own_settings)

    # ------------------------------------------------------------------ making and deleting

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic, and wait until every broker serves it."""
        check_name(name, partitions)
        for key, value in config.items():
            if not isinstance(value, str):
                raise LogError(f"topic {name!r}: setting {key!r} is {value!r}, expected text, e.g. {str(value)!r}")
        new = NewTopic(name, partitions, self._clients.replication, config=dict(config))
        try:
            self._create(new)
        except KafkaException as exception:
            raise self._not_created(name, config, exception) from exception
        self._wait_until_served(name, partitions)

    def _create(self, new: NewTopic) -> None:
        """Create a topic; wait as long as no broker of the cluster is registered, for up to `task_timeout`."""
        deadline = time.monotonic() + self._patience.timeout_s
        while True:
            try:
                self._admin.one(f"creating topic {new.topic!r}", AdminClient.create_topics, [new])
                return
            except KafkaException as exception:
                error = error_of(exception)
                if error is None or not is_without_brokers(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_AGAIN_SECONDS)

    def ensure(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic unless it is there, and wait until every broker serves it.

        Other processes may do so at the same time, and the broker this one asks may not list it yet.
        """
        if name in self.counts() or name in self.counts(fresh=True):
            return
        try:
            self.create(name, partitions, config)
        except TopicExistsError:
            self._wait_until_served(name, partitions)

    def _wait_until_served(self, name: str, partitions: int) -> None:
        self._wait(f"topic {name!r} to appear", lambda: self._is_ready(name, partitions))
        self._wait(f"every broker to list topic {name!r}", lambda: self._is_listed_everywhere(name, partitions))

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self._count(name, self.counts(fresh=True))
        self.purges.forget(name)
        doing = f"deleting topic {name!r}"
        with self._patience.naming(doing):
            self._admin.one(doing, AdminClient.delete_topics, [name])
        self._wait(f"topic {name!r} to go", lambda: name not in self.counts(fresh=True))

    def _is_ready(self, name: str, partitions: int) -> bool:
        if self.counts(fresh=True).get(name) != partitions:
            return False
        try:
            self.start_offsets([TopicPartition(name, each) for each in range(partitions)])
        except (LogError, KafkaException):
            return False
        return True

    def _is_listed_everywhere(self, name: str, partitions: int) -> bool:
        brokers = self._admin.list_topics("listing brokers").brokers.values()
        if len(brokers) == 1:
            return True
        with ThreadPoolExecutor(_BROKERS_AT_ONCE) as threads:
            return all(
                threads.map(lambda each: self._is_listed_at(each.host, each.port, name, partitions), list(brokers))
            )

    def _is_listed_at(self, host: str, port: int, name: str, partitions: int) -> bool:
        client = self._clients.admin_at(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        try:
            found = client.list_topics(name, timeout=_BROKER_SECONDS).topics.get(name)
        except KafkaException as exception:
            _log.debug("broker %s:%d, topic %r: %s", host, port, name, exception)
            return True
        return found is not None and found.error is None and len(found.partitions) == partitions

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._patience.timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise LogError(
                    f"{self._clients.where}: waited {self._patience.timeout_s:g} s (task_timeout) for {what}"
                )
            time.sleep(0.02)

    def _not_created(self, name: str, config: Mapping[str, str], exception: KafkaException) -> LogError:
        error = error_of(exception)
        if error is None:
            return LogError(f"topic {name!r}: {exception}")
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return TopicExistsError(f"topic {name!r} exists: use it, choose another name, or delete it first")
        if error.code() == KafkaError.INVALID_CONFIG:
            known = [*CONFIG_DEFAULTS, *CONFIG_IGNORED]
            for key in config:
                if key not in known and (question := did_you_mean(key, known)):
                    return LogError(f"topic {name!r}: unknown setting {key!r}; {question} ({describe(error)})")
        if error.code() == KafkaError.INVALID_REPLICATION_FACTOR:
            return LogError(
                f"topic {name!r}: {describe(error)}: set `replication_factor` to at most the number of brokers"
            )
        return LogError(f"topic {name!r} cannot be created in {self._clients.where}: {describe(error)}")

    # ------------------------------------------------------------------ offsets

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset that can still be read, for each."""
        return self.offsets(partitions, _EARLIEST)

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool) -> dict[TopicPartition, int]:
        """Return the end offset of each; with `stable`, the stable end offset: below every open transaction."""
        return self.offsets(partitions, _LATEST, _level(stable))

    def known_end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool) -> dict[TopicPartition, int]:
        """Return the end offsets of partitions with a leader. Raises LogError if one does not answer."""
        led = self._led({partition.topic for partition in partitions})
        asked = {KafkaPartition(*partition): _LATEST for partition in partitions if partition in led}
        if not asked:
            return {}

        def read(futures: Mapping[KafkaPartition, Future[Any]]) -> dict[TopicPartition, int]:
            known = {each: future for each, future in futures.items() if future.exception() is None}
            return {TopicPartition(at.topic, at.partition): int(known[at].result().offset) for at in known}

        doing = "asking for offsets"
        with self._patience.naming(doing):
            level = _level(stable)
            return self._admin.once(AdminClient.list_offsets, asked, read, _ANSWER_SECONDS, isolation_level=level)

    def _led(self, topics: Collection[str]) -> set[TopicPartition]:
        """Return the partitions of topics that have a leader."""

        def read(futures: Mapping[str, Future[Any]]) -> set[TopicPartition]:
            found = {name: future.result() for name, future in futures.items() if future.exception() is None}
            return {
                TopicPartition(name, partition.id)
                for name, topic in found.items()
                for partition in topic.partitions
                if partition.leader is not None
            }

        doing = "asking for the leaders of topics"
        with self._patience.naming(doing):
            return self._admin.once(AdminClient.describe_topics, TopicCollection([*topics]), read, _ANSWER_SECONDS)

    def offsets_for_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Return the first offset whose record has that timestamp or a later one; the end where there is none."""
        found = self.offsets(partitions, OffsetSpec.for_timestamp(max(0, timestamp_ms)))
        late = [each for each, offset in found.items() if offset < 0]
        return {**found, **(self.end_offsets(late, stable=True) if late else {})}

    def offsets(
        self, partitions: Sequence[TopicPartition], spec: OffsetSpec, level: IsolationLevel | None = None
    ) -> dict[TopicPartition, int]:
        """Return an offset of each partition."""
        if not partitions:
            return {}
        asked = {KafkaPartition(partition.topic, partition.partition): spec for partition in partitions}
        options: dict[str, Any] = {} if level is None else {"isolation_level": level}

        def read(futures: Mapping[KafkaPartition, Future[Any]]) -> dict[TopicPartition, int]:
            try:
                return {
                    TopicPartition(each.topic, each.partition): int(future.result().offset)
                    for each, future in futures.items()
                }
            except KafkaException as exception:
                error = error_of(exception)
                codes = (KafkaError._NOENT, KafkaError.FENCED_LEADER_EPOCH)
                if error is None or not (error.code() in codes or is_unknown_topic(error)):
                    raise
                # No leader, or another one: the topic was deleted, or the client needs new metadata, as after a freeze.
                # Or the topic is so new that its leader does not know it yet.
                self.check(partitions, fresh=True)
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, error.str())) from exception

        try:
            found = self._admin.call("asking for offsets", AdminClient.list_offsets, asked, read, **options)
        except KafkaException as exception:
            raise self._patience.failed("asking for offsets", exception) from exception
        # In the order of the request.
        return {partition: found[partition] for partition in partitions}


def _level(stable: bool) -> IsolationLevel:
    return IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED


class _TopicSettings(Mapping[str, str]):
    """The settings of a topic, requested on first access. `find` returns those of all topics, by one request."""

    def __init__(self, name: str, find: Callable[[], Mapping[str, Mapping[str, str]]]) -> None:
        self._name = name
        self._find = find

    def _own(self) -> Mapping[str, str]:
        return self._find().get(self._name, {})

    def __getitem__(self, key: str) -> str:
        return self._own()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())

    def __repr__(self) -> str:
        return repr(self._own())


def _is_internal(name: str, owners: set[str]) -> bool:
    """Return whether a topic is an internal topic of an application that has run here."""
    return name.endswith(_OWN_SUFFIXES) and any(name.startswith(f"{owner}-") for owner in owners)


def _own_settings(futures: Mapping[ConfigResource, Future[Any]]) -> dict[str, dict[str, str]]:
    """Return the settings that topics were given, from the answers of the brokers. Raises KafkaException."""
    found: dict[str, dict[str, str]] = {}
    for resource, future in futures.items():
        try:
            entries = future.result()
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and (is_unknown_topic(error) or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED):
                # Another program's topic may be forbidden, or deleted meanwhile.
                continue
            raise
        # Source 1: given to this topic. Other sources are defaults of the broker.
        found[resource.name] = {
            name: entry.value for name, entry in entries.items() if entry.source == 1 and entry.value is not None
        }
    return found
