"""Kafka Streams' names of settings, each with its counterpart here, or the replacement."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock import (
    ConfigError,
    fail,
    fail_on_invalid_timestamp,
    skip,
    skip_on_invalid_timestamp,
    use_partition_time_on_invalid_timestamp,
    wall_clock_timestamp,
)
from penstock.program.offset_reset import of_kafka
from penstock.settings.names import Key, NoCounterpartError, Vocabulary

Convert = Callable[[Any], Any]


def _whole(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value):
        return int(value)
    return value


def _yes_or_no(value: Any) -> Any:
    return {"true": True, "false": False}.get(value.strip().lower(), value) if isinstance(value, str) else value


def _milliseconds(value: Any) -> Any:
    number = _whole(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ConfigError(f"expected a whole number of milliseconds, found {value!r}")
    return f"{number}ms"


def _idle(value: Any) -> Any:
    return None if _whole(value) == -1 else _milliseconds(value)


def _servers(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = ",".join(map(str, value))
    if not isinstance(value, str) or not value.strip():
        raise ConfigError("expected HOST:PORT[,HOST:PORT]")
    return "kafka:" + ",".join(part.strip() for part in value.split(","))


def _one_of(what: str, known: Mapping[str, Any], instead: str) -> Convert:
    """Return a function that turns the name of a Java class into ours; other values stay."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        simple = re.split(r"[.$]", value)[-1]
        if simple in known:
            return known[simple]
        if re.search(r"[.$]", value) and ":" not in value:
            raise ConfigError(f"there is no {what} here for the Java class {value!r}: {instead}")
        return value

    return convert


_serde = _one_of(
    "serde",
    {
        "StringSerde": "str",
        "ByteArraySerde": "bytes",
        "BytesSerde": "bytes",
        "ByteBufferSerde": "bytes",
        "LongSerde": "int",
        "IntegerSerde": "int32",
        "ShortSerde": "int16",
        "DoubleSerde": "float",
        "FloatSerde": "float32",
        "BooleanSerde": "bool",
        "UUIDSerde": "uuid",
        "VoidSerde": "void",
    },
    "write the name of an installed serde (`penstock plugins --kind serde`), e.g. json; for lists write list:INNER, "
    "e.g. list:int32; for another format subclass penstock.Serde",
)
_handler = _one_of(
    "handler",
    {
        "LogAndContinueExceptionHandler": skip,
        "LogAndContinueProcessingExceptionHandler": skip,
        "LogAndFailExceptionHandler": fail,
        "LogAndFailProcessingExceptionHandler": fail,
        "DefaultProductionExceptionHandler": fail,
    },
    "write skip, fail, or MODULE:ATTR of a function of yours",
)
_extractor = _one_of(
    "timestamp extractor",
    {
        "FailOnInvalidTimestamp": fail_on_invalid_timestamp,
        "LogAndSkipOnInvalidTimestamp": skip_on_invalid_timestamp,
        "UsePartitionTimeOnInvalidTimestamp": use_partition_time_on_invalid_timestamp,
        "WallclockTimestampExtractor": wall_clock_timestamp,
    },
    "write the name of one of ours, e.g. wall_clock_timestamp, or MODULE:ATTR of a function of yours",
)
_backend = _one_of(
    "store backend",
    {
        "rocksDB": "lmdb",
        "in_memory": "memory",
        "RocksDBDslStoreSuppliers": "lmdb",
        "InMemoryDslStoreSuppliers": "memory",
    },
    "write the name of an installed store backend (`penstock plugins --kind 'store backend'`)",
)

_wrapper = _one_of(
    "wrapper of processors",
    {"NoOpProcessorWrapper": None},
    "write MODULE:ATTR of a function of yours that takes the node's name and its processor",
)

KAFKA_STREAMS: Mapping[str, tuple[str, Convert]] = {
    "application.id": ("application_id", str),
    "application.server": ("application_server", lambda value: value or None),
    "bootstrap.servers": ("log", _servers),
    "state.dir": ("state_dir", lambda value: value),
    "dsl.store.suppliers.class": ("store_backend", _backend),
    "default.dsl.store": ("store_backend", _backend),
    "default.key.serde": ("key_serde", _serde),
    "default.value.serde": ("value_serde", _serde),
    "default.timestamp.extractor": ("timestamp_extractor", _extractor),
    "auto.offset.reset": ("offset_reset", of_kafka),
    "max.task.idle.ms": ("max_task_idle", _idle),
    "deserialization.exception.handler": ("deserialization_handler", _handler),
    "default.deserialization.exception.handler": ("deserialization_handler", _handler),
    "processing.exception.handler": ("processing_handler", _handler),
    "production.exception.handler": ("production_handler", _handler),
    "default.production.exception.handler": ("production_handler", _handler),
    "processor.wrapper.class": ("processor_wrapper", _wrapper),
    "errors.dead.letter.queue.topic.name": ("dead_letter_topic", lambda value: value),
    "statestore.cache.max.bytes": ("statestore_cache_max_bytes", _whole),
    "cache.max.bytes.buffering": ("statestore_cache_max_bytes", _whole),
    "topology.optimization": ("topology_optimization", lambda value: value),
    "ensure.explicit.internal.resource.naming": ("explicit_internal_names", _yes_or_no),
    "dsl.store.format": ("dsl_store_format", lambda value: value),
    "commit.interval.ms": ("commit_interval", _milliseconds),
    "processing.guarantee": ("processing_guarantee", lambda value: value),
    "task.timeout.ms": ("task_timeout", _milliseconds),
    "metadata.cluster.check.enable": ("cluster_check", _yes_or_no),
    "replication.factor": ("replication_factor", _whole),
    "state.cleanup.delay.ms": ("state_cleanup_delay", _milliseconds),
    "num.standby.replicas": ("num_standby_replicas", _whole),
    "num.stream.threads": ("parallelism", _whole),
    "schema.registry.url": ("schema_registry", lambda value: value),
    "basic.auth.user.info": ("schema_registry_user_info", lambda value: value),
}
"""Name of Kafka Streams -> ours, and the function that turns its value into ours."""

_NO_GROUP = "tasks are placed by Spark, not by a consumer group; leave it out"
_RACKS = "set `racks`, which says in which rack each machine is"
_NO_LIST_SERDE = "write the serde list:INNER, e.g. list:int32"
_NO_DSL_SERDE = "give the source, sink or store its serde"
_NO_METRICS = "set `metrics_port` for Prometheus, or see `penstock status`; leave it out"
_LMDB = "stores are kept in LMDB; leave it out"

WITHOUT_COUNTERPART: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "acceptable.recovery.lag": ("a slot goes to a machine with copies, however far they are behind; leave it out", ()),
    "allow.os.group.write.access": ("new directories have mode 0700, and files 0600", ("false",)),
    "basic.auth.credentials.source": ("set `schema_registry_user_info`", ("user_info",)),
    "buffered.records.per.partition": ("set `fetch_bytes`", ()),
    "built.in.metrics.version": (_NO_METRICS, ("latest",)),
    "config.providers": (
        'give a secret as {file = "PATH"}, or in the variable PENSTOCK_NAME or PENSTOCK_NAME_FILE',
        ("",),
    ),
    "default.client.supplier": ("the clients are librdkafka's; leave it out", ()),
    "default.interactive.query.isolation.level": (
        "queries read what is committed; to see changes sooner, shorten `commit_interval`",
        ("read_committed",),
    ),
    "default.list.key.serde.inner": (_NO_LIST_SERDE, ()),
    "default.list.key.serde.type": (_NO_LIST_SERDE, ()),
    "default.list.value.serde.inner": (_NO_LIST_SERDE, ()),
    "default.list.value.serde.type": (_NO_LIST_SERDE, ()),
    "enable.transactional.statestores": ("stores are always transactional; leave it out", ("true",)),
    "group.protocol": (_NO_GROUP, ("classic", "streams")),
    "log.summary.interval.ms": ("`penstock run` shows its progress; leave it out", ()),
    "max.warmup.replicas": ("no copy is made before a slot moves; set `num_standby_replicas` to keep copies", ()),
    "metric.reporters": ("set `metrics_reporters`, or `metrics_port` for Prometheus", ("",)),
    "metrics.num.samples": (_NO_METRICS, ()),
    "metrics.recording.level": (_NO_METRICS, ()),
    "metrics.sample.window.ms": (_NO_METRICS, ()),
    "poll.ms": ("Spark starts the batches: `penstock run --trigger`", ()),
    "probing.rebalance.interval.ms": (_NO_GROUP, ()),
    "processing.exception.handler.global.enabled": (
        "global stores are filled without processors; leave it out",
        ("false",),
    ),
    "rack.aware.assignment.non_overlap_cost": (_NO_GROUP, ()),
    "rack.aware.assignment.strategy": (_RACKS, ("none",)),
    "rack.aware.assignment.tags": (_RACKS, ("",)),
    "rack.aware.assignment.traffic_cost": (_NO_GROUP, ()),
    "repartition.purge.interval.ms": ("repartition topics are purged behind each commit; leave it out", ()),
    "rocksdb.config.setter": (_LMDB, ()),
    "state.cleanup.dir.max.age.ms": ("set `state_cleanup_delay`", ("-1",)),
    "statestore.uncommitted.max.bytes": ("set `commit_bytes`, which is for each task", ()),
    "task.assignor.class": (_NO_GROUP, ("",)),
    "topology.description.push.enabled": ("`penstock describe` shows the topology; leave it out", ("false",)),
    "upgrade.from": ("nothing has to be upgraded; leave it out", ("",)),
    "window.size.ms": (_NO_DSL_SERDE, ()),
    "windowed.inner.class.serde": (_NO_DSL_SERDE, ()),
    "windowstore.changelog.additional.retention.ms": ("the changelog keeps what restoring needs; leave it out", ()),
}  # fmt: skip
"""Name of Kafka Streams without counterpart here -> the replacement, and values that change nothing."""

_FOREIGN_PREFIXES = {
    "restore.consumer.": "state is restored from `changelog`; settings of all consumers have the prefix consumer.",
    "global.consumer.": "there is one kind of consumer: use the prefix consumer.",
}
"""Prefix of Kafka Streams without counterpart here -> the replacement."""
_TOPIC = "topic."
"""The prefix of settings of internal topics."""
_OF_CLIENTS = ("topic.blacklist", "topic.metadata.")
"""Prefixes of librdkafka's names that look like Kafka Streams' `topic.`."""


class KafkaStreamsNames(Vocabulary):
    """The vocabulary of Kafka Streams 4.4."""

    owner = "Kafka Streams"
    prefixes = ()

    def names(self) -> Iterable[str]:
        return [*KAFKA_STREAMS, *WITHOUT_COUNTERPART]

    def knows(self, name: str) -> bool:
        return name in KAFKA_STREAMS or name in WITHOUT_COUNTERPART or _prefix(name) is not None

    def translate(self, name: str, value: Any) -> tuple[Key, Any] | None:
        if name in KAFKA_STREAMS:
            key, convert = KAFKA_STREAMS[name]
            return key, convert(value)
        if _prefix(name) == _TOPIC:
            return ("topic_config", name.removeprefix(_TOPIC)), value
        if name in WITHOUT_COUNTERPART:
            advice, as_it_is = WITHOUT_COUNTERPART[name]
            if str("" if value is None or value == [] else value).lower() in as_it_is:
                return None
        else:
            advice = _FOREIGN_PREFIXES[_prefix(name) or ""]
        raise NoCounterpartError(f"{name!r} of Kafka Streams has no counterpart here: {advice}")


def _prefix(name: str) -> str | None:
    if name.startswith(_OF_CLIENTS):
        return None
    return next((each for each in (*_FOREIGN_PREFIXES, _TOPIC) if name.startswith(each)), None)


NAMES = KafkaStreamsNames()
