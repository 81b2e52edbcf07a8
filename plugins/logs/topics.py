"""Names and settings of topics, by Kafka's rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock import LogError, TopicExistsError, TopicInfo
from penstock.support.names import did_you_mean, is_topic_name

_MAX_PARTITIONS = 10_000

CONFIG_DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
"""The settings that have an effect here, with Kafka's defaults, except `retention.ms`: a log on the user's own disk
deletes nothing by default (Kafka: seven days by the records' timestamps, which would delete old data at once)."""

CONFIG_IGNORED = frozenset(
    [
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    ]
)
"""Kafka's other topic settings: accepted and kept, so that a topic can move to Kafka, and without effect here."""


@dataclass(frozen=True)
class TopicSettings:
    """The settings of a topic, parsed."""

    compact: bool
    delete: bool
    delete_retention_ms: int
    max_message_bytes: int
    min_cleanable_dirty_ratio: float
    log_append_time: bool
    min_compaction_lag_ms: int
    retention_bytes: int
    retention_ms: int


def parse_config(name: str, config: Mapping[str, str]) -> TopicSettings:
    """Return a topic's settings. Raises LogError, naming topic and setting, for an unknown or a bad one."""
    for key, value in config.items():
        if key not in CONFIG_DEFAULTS and key not in CONFIG_IGNORED:
            known = sorted([*CONFIG_DEFAULTS, *CONFIG_IGNORED])
            advice = did_you_mean(key.replace("_", "."), known) or f"known: {', '.join(known)}"
            raise LogError(f"topic {name!r}: unknown setting {key!r}; {advice}")
        if not isinstance(value, str):
            raise LogError(f"topic {name!r}: setting {key!r} is {value!r}, expected text, e.g. {str(value)!r}")
    given = {**CONFIG_DEFAULTS, **config}

    def number(key: str, least: int) -> int:
        try:
            value = int(given[key])
        except ValueError:
            value = least - 1
        if value < least:
            raise LogError(
                f"topic {name!r}: setting {key!r} is {given[key]!r}, expected a whole number, {least} or more"
            )
        return value

    def ratio(key: str) -> float:
        try:
            value = float(given[key])
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise LogError(f"topic {name!r}: setting {key!r} is {given[key]!r}, expected a number from 0 to 1")
        return value

    policies = {each.strip() for each in given["cleanup.policy"].split(",")}
    if not policies <= {"compact", "delete"}:
        raise LogError(
            f"topic {name!r}: setting 'cleanup.policy' is {given['cleanup.policy']!r}, "
            "expected 'delete', 'compact' or 'compact,delete'"
        )
    if given["message.timestamp.type"] not in ("CreateTime", "LogAppendTime"):
        raise LogError(
            f"topic {name!r}: setting 'message.timestamp.type' is {given['message.timestamp.type']!r}, "
            "expected 'CreateTime' or 'LogAppendTime'"
        )
    return TopicSettings(
        compact="compact" in policies,
        delete="delete" in policies,
        delete_retention_ms=number("delete.retention.ms", 0),
        max_message_bytes=number("max.message.bytes", 0),
        min_cleanable_dirty_ratio=ratio("min.cleanable.dirty.ratio"),
        log_append_time=given["message.timestamp.type"] == "LogAppendTime",
        min_compaction_lag_ms=number("min.compaction.lag.ms", 0),
        retention_bytes=number("retention.bytes", -1),
        retention_ms=number("retention.ms", -1),
    )


def check_name(name: str, partitions: int) -> None:
    """Raise LogError for a name, or a number of partitions, that a topic cannot have."""
    if not is_topic_name(name):
        raise LogError(
            f"topic name {name!r}: expected 1 to 249 ASCII letters, digits, '.', '_' or '-', and not '.' or '..' alone"
        )
    if not isinstance(partitions, int) or not 1 <= partitions <= _MAX_PARTITIONS:
        raise LogError(
            f"topic {name!r}: {partitions!r} partitions, expected a whole number from 1 to {_MAX_PARTITIONS}"
        )


def check_new_topic(
    name: str, partitions: int, config: Mapping[str, str], existing: Iterable[str], *, internal: bool
) -> TopicInfo:
    """Return the description of a topic to create. Raises LogError for everything that Kafka refuses."""
    check_name(name, partitions)
    for other in existing:
        if other == name:
            raise TopicExistsError(f"topic {name!r} exists: use it, choose another name, or delete it first")
        if other.replace(".", "_") == name.replace(".", "_"):
            raise LogError(
                f"topic {name!r} differs from topic {other!r} only in '.' and '_', which Kafka refuses: choose another "
                "name"
            )
    parse_config(name, config)
    return TopicInfo(name, partitions, dict(config), internal)
