"""Names of settings: our own, Kafka Streams' and those of Kafka's clients, each turned into one of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from difflib import SequenceMatcher
from typing import Any

from .. import extractors, handlers
from ..errors import ConfigError
from . import client_names

Key = str | tuple[str, str]
"""A setting: a field of Settings, `("clients", NAME)`, `("user", NAME)`, or one of EXTRA."""

EXTRA = ("application_id", "dead_letter_topic")
"""What can be set and is no field of Settings: the id, and the topic that the handler `skip` sends to."""

Convert = Callable[[Any], Any]


def _whole(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value):
        return int(value)
    return value


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
        "DoubleSerde": "float",
        "BooleanSerde": "bool",
    },
    "write the name of an installed serde (`penstock plugins --kind serde`), e.g. json; int and float are 8 bytes as "
    "Kafka's Long and Double; for another format subclass penstock.Serde",
)
_handler = _one_of(
    "handler",
    {
        "LogAndContinueExceptionHandler": handlers.skip,
        "LogAndContinueProcessingExceptionHandler": handlers.skip,
        "LogAndFailExceptionHandler": handlers.fail,
        "LogAndFailProcessingExceptionHandler": handlers.fail,
        "DefaultProductionExceptionHandler": handlers.fail,
    },
    "write skip, fail, or MODULE:ATTR of a function of yours",
)
_extractor = _one_of(
    "timestamp extractor",
    {
        "FailOnInvalidTimestamp": extractors.fail_on_invalid_timestamp,
        "LogAndSkipOnInvalidTimestamp": extractors.skip_on_invalid_timestamp,
        "UsePartitionTimeOnInvalidTimestamp": extractors.use_partition_time_on_invalid_timestamp,
        "WallclockTimestampExtractor": extractors.wall_clock_timestamp,
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

KAFKA_STREAMS: Mapping[str, tuple[str, Convert]] = {
    "application.id": ("application_id", str),
    "bootstrap.servers": ("log", _servers),
    "state.dir": ("state_dir", lambda value: value),
    "dsl.store.suppliers.class": ("store_backend", _backend),
    "default.dsl.store": ("store_backend", _backend),
    "default.key.serde": ("key_serde", _serde),
    "default.value.serde": ("value_serde", _serde),
    "default.timestamp.extractor": ("timestamp_extractor", _extractor),
    "auto.offset.reset": ("offset_reset", lambda value: value),
    "max.task.idle.ms": ("max_task_idle", _idle),
    "deserialization.exception.handler": ("deserialization_handler", _handler),
    "default.deserialization.exception.handler": ("deserialization_handler", _handler),
    "processing.exception.handler": ("processing_handler", _handler),
    "production.exception.handler": ("production_handler", _handler),
    "default.production.exception.handler": ("production_handler", _handler),
    "errors.dead.letter.queue.topic.name": ("dead_letter_topic", lambda value: value),
    "commit.interval.ms": ("commit_interval", _milliseconds),
    "processing.guarantee": ("processing_guarantee", lambda value: value),
    "task.timeout.ms": ("task_timeout", _milliseconds),
    "replication.factor": ("replication_factor", _whole),
    "state.cleanup.delay.ms": ("state_cleanup_delay", _milliseconds),
    "num.stream.threads": ("parallelism", _whole),
}
"""Name of Kafka Streams -> ours, and the function that turns its value into ours."""

_NO_GROUP = "tasks are placed by Spark, not by a consumer group; leave it out"
_NO_DSL_SERDE = "give the source, sink or store its serde"
_NO_METRICS = "`penstock run` reports counts; leave it out"
_LMDB = "stores are kept in LMDB; leave it out"

NOT_HERE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "acceptable.recovery.lag": ("there are no standby tasks; leave it out", ()),
    "allow.os.group.write.access": ("the state directory gets the process's umask", ("false",)),
    "application.server": ("state is not served to other hosts; leave it out", ("",)),
    "buffered.records.per.partition": ("set `fetch_bytes`", ()),
    "built.in.metrics.version": (_NO_METRICS, ("latest",)),
    "cache.max.bytes.buffering": ("there is no record cache, every update is emitted; `commit_bytes` bounds what waits for a commit", ("0",)),
    "config.providers": ('give a secret as {file = "PATH"}, or in the variable PENSTOCK_NAME or PENSTOCK_NAME_FILE', ("",)),
    "default.client.supplier": ("the clients are librdkafka's; leave it out", ()),
    "default.list.key.serde.inner": (_NO_DSL_SERDE, ()),
    "default.list.key.serde.type": (_NO_DSL_SERDE, ()),
    "default.list.value.serde.inner": (_NO_DSL_SERDE, ()),
    "default.list.value.serde.type": (_NO_DSL_SERDE, ()),
    "dsl.store.format": ("stores say themselves whether they keep timestamps; leave it out", ("default",)),
    "ensure.explicit.internal.resource.naming": ("every node and store has a name here; leave it out", ("false", "true")),
    "group.protocol": (_NO_GROUP, ("classic", "streams")),
    "log.summary.interval.ms": ("`penstock run` shows its progress; leave it out", ()),
    "max.warmup.replicas": ("there are no standby tasks; leave it out", ()),
    "metric.reporters": (_NO_METRICS, ("",)),
    "metrics.num.samples": (_NO_METRICS, ()),
    "metrics.recording.level": (_NO_METRICS, ()),
    "metrics.sample.window.ms": (_NO_METRICS, ()),
    "num.standby.replicas": ("there are no standby tasks: a task restores from the changelog where Spark places it", ("0",)),
    "poll.ms": ("Spark starts the batches: `penstock run --trigger`", ()),
    "probing.rebalance.interval.ms": (_NO_GROUP, ()),
    "processing.exception.handler.global.enabled": ("global stores are filled without processors; leave it out", ("false",)),
    "processor.wrapper.class": ("wrap processors where the topology is made", ()),
    "rack.aware.assignment.non_overlap_cost": (_NO_GROUP, ()),
    "rack.aware.assignment.strategy": (_NO_GROUP, ("none",)),
    "rack.aware.assignment.tags": (_NO_GROUP, ("",)),
    "rack.aware.assignment.traffic_cost": (_NO_GROUP, ()),
    "repartition.purge.interval.ms": ("repartition topics are purged behind each commit; leave it out", ()),
    "rocksdb.config.setter": (_LMDB, ()),
    "state.cleanup.dir.max.age.ms": ("set `state_cleanup_delay`", ("-1",)),
    "statestore.cache.max.bytes": ("there is no record cache, every update is emitted; `commit_bytes` bounds what waits for a commit", ("0",)),
    "task.assignor.class": (_NO_GROUP, ("",)),
    "topology.optimization": ("a topology runs as it is written; leave it out", ("none",)),
    "upgrade.from": ("nothing has to be upgraded; leave it out", ("",)),
    "window.size.ms": (_NO_DSL_SERDE, ()),
    "windowed.inner.class.serde": (_NO_DSL_SERDE, ()),
    "windowstore.changelog.additional.retention.ms": ("the changelog keeps what restoring needs; leave it out", ()),
}  # fmt: skip
"""Name of Kafka Streams without counterpart here -> what to do instead, and values that say what is so anyway."""

_NO_PREFIX = {
    "restore.consumer": "state is restored from `changelog`; settings of all consumers have the prefix consumer.",
    "global.consumer": "there is one kind of consumer: use the prefix consumer.",
    "topic": "internal topics get the broker's defaults, and `replication_factor`",
}


def translate(name: str, value: Any, own: Collection[str]) -> tuple[Key, Any] | None:
    """Return which of our settings a name stands for, and its value; None when it says what is so anyway.

    `own` are the fields of Settings. Raises ConfigError for a name without counterpart, with what to do instead, and for an
    unknown one, with the nearest names.

    >>> translate("max.task.idle.ms", "-1", ["max_task_idle"])
    ('max_task_idle', None)
    """
    try:
        return _translate(name.strip(), value, own)
    except _Unfit as error:
        raise ConfigError(str(error)) from None
    except ConfigError as error:
        raise ConfigError(f"setting {name!r}: {error}") from None


class _Unfit(ConfigError):
    """The name is at fault, not the value; the message names it already."""


def _translate(name: str, value: Any, own: Collection[str]) -> tuple[Key, Any] | None:
    if name in own or name in EXTRA:
        return name, value
    head, _, rest = name.partition(".")
    if head in ("clients", "user") and rest:
        return (head, rest), value
    if name in KAFKA_STREAMS:
        key, convert = KAFKA_STREAMS[name]
        return key, convert(value)
    if name in NOT_HERE:
        advice, as_it_is = NOT_HERE[name]
        if str("" if value is None or value == [] else value).lower() in as_it_is:
            return None
        raise _Unfit(f"{name!r} of Kafka Streams has no counterpart here: {advice}")
    plain = re.sub(r"[.-]", "_", name)
    if plain in own or plain in EXTRA:
        return plain, value
    return _client(name, value, own)


def _client(name: str, value: Any, own: Collection[str]) -> tuple[Key, Any]:
    """Return the setting of the log's clients that a name stands for."""
    for prefix, why in _NO_PREFIX.items():
        if name.startswith(prefix + ".") and name not in client_names.KNOWN:
            raise _Unfit(f"{name!r} of Kafka Streams has no counterpart here: {why}")
    head, _, rest = name.removeprefix("main.").partition(".")
    prefix, plain = (head + ".", rest) if head in client_names.PREFIXES and rest else ("", name)
    if plain == "auto.offset.reset":
        return "offset_reset", value
    if plain in client_names.JAVA_ONLY:
        raise _Unfit(f"{name!r} is one of Java's clients only, not librdkafka's: {client_names.advice(plain)}")
    if plain in client_names.KNOWN or plain in client_names.RENAMED:
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        return ("clients", prefix + client_names.RENAMED.get(plain, plain)), value
    raise _Unfit(_unknown(name, own))


def _unknown(name: str, own: Collection[str]) -> str:
    near = nearest(name, own)
    if near:
        return f"unknown setting {name!r}; did you mean {' or '.join(map(repr, near))}?"
    return (
        f"unknown setting {name!r}; known: {', '.join(own)}, and the names of Kafka Streams and of Kafka's clients "
        "(any other of these: clients.NAME)"
    )


def nearest(name: str, own: Collection[str]) -> list[str]:
    """Return the names that look most like `name`, of ours and of Kafka's, however their words are joined."""
    prefix = next((f"{each}." for each in client_names.PREFIXES if name.startswith(f"{each}.")), "")
    clients = [prefix + each for each in sorted(client_names.KNOWN)]
    names = clients if prefix else [*own, *EXTRA, *KAFKA_STREAMS, *NOT_HERE, *clients]
    likeness = {
        each: SequenceMatcher(None, flat(each.removeprefix(prefix)), flat(name.removeprefix(prefix))).ratio()
        for each in dict.fromkeys(names)
    }
    best = max(likeness.values())
    near = [each for each, ratio in likeness.items() if ratio > 0.7 and ratio > best - 0.1]
    return sorted(near, key=likeness.__getitem__, reverse=True)[:3]


def flat(name: str) -> str:
    """Return a name as an environment variable spells it, in lower case.

    >>> flat("consumer.fetch.min.bytes")
    'consumer_fetch_min_bytes'
    """
    return re.sub(r"[.-]", "_", name.lower())
