"""Topics, groups and notes of a Kafka cluster as data for JSON, and a broker that gets the same from it.

A data directory of a broker is too large for a repository. Read and written by an ordinary client, so that nothing
here follows the code under test.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from zlib import crc32

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, ResourceType  # type: ignore[attr-defined]

_SECONDS = 30.0
_FILLER = b"filler"


def dump(bootstrap: str, prefix: str) -> dict[str, Any]:
    """Return all topics and groups whose names begin with `prefix`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = {
        name: {
            "config": _config(admin, name),
            "partitions": [_partition(bootstrap, name, number) for number in sorted(found.partitions)],
        }
        for name, found in sorted(admin.list_topics(timeout=_SECONDS).topics.items())
        if name.startswith(prefix)
    }
    return {"topics": topics, "groups": {name: _positions(admin, name) for name in _groups(admin, prefix)}}


def replay(bootstrap: str, dumped: dict[str, Any]) -> None:
    """Make the topics and groups of a dump on another broker, each record at its offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics(
        [NewTopic(name, len(each["partitions"]), 1, config=each["config"]) for name, each in dumped["topics"].items()]
    )
    for future in made.values():
        future.result(_SECONDS)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    transactional = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "transactional.id": "replay"})
    transactional.init_transactions(_SECONDS)
    for name, each in dumped["topics"].items():
        for number, partition in enumerate(each["partitions"]):
            _fill(producer, transactional, name, number, partition)
    deleted = [
        KafkaPartition(name, number, partition["start"])
        for name, each in dumped["topics"].items()
        for number, partition in enumerate(each["partitions"])
        if partition["start"]
    ]
    if deleted:
        for purge in admin.delete_records(deleted).values():
            purge.result(_SECONDS)
    ids = _ids(admin, list(dumped["topics"]))
    for group, positions in dumped["groups"].items():
        offsets = [
            KafkaPartition(name, number, offset, metadata=_with_ids(metadata, ids))
            for name, number, offset, metadata in positions
        ]
        with _consumer(bootstrap, group) as consumer:
            failed = [each.error for each in consumer.commit(offsets=offsets, asynchronous=False) if each.error]
            assert not failed, failed


def _groups(admin: AdminClient, prefix: str) -> list[str]:
    listed = admin.list_consumer_groups().result(_SECONDS)
    return sorted(each.group_id for each in listed.valid if each.group_id.startswith(prefix))


def _config(admin: AdminClient, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    found = admin.describe_configs([resource])[resource].result(_SECONDS)
    return {
        key: each.value for key, each in sorted(found.items()) if each.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }


def _positions(admin: AdminClient, group: str) -> list[Any]:
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(_SECONDS)
    return sorted([each.topic, each.partition, each.offset, each.metadata] for each in found.topic_partitions)


def _ids(admin: AdminClient, names: list[str]) -> dict[str, str]:
    futures = admin.describe_topics(TopicCollection(names))
    return {name: str(future.result(_SECONDS).topic_id) for name, future in futures.items()}


def _with_ids(metadata: str, ids: dict[str, str]) -> str:
    """Return the metadata of a position with the ids that the topics have now, and its check sum."""
    fields = json.loads(metadata) if metadata else {}
    if "state" not in fields:
        return metadata
    state = json.loads(b64decode(fields["state"]))
    state["ids"] = {topic: f"{crc32(ids[topic].encode()):08x}" for topic in state.get("ids", ())}
    fields["state"] = b64encode(json.dumps(state, separators=(",", ":")).encode()).decode()
    del fields["sum"]
    fields["sum"] = f"{crc32(json.dumps(fields, sort_keys=True).encode()):08x}"
    return json.dumps(fields, separators=(",", ":"))


# ---------------------------------------------------------------- records


def _partition(bootstrap: str, name: str, number: int) -> dict[str, Any]:
    with _consumer(bootstrap) as consumer:
        start, end = consumer.get_watermark_offsets(KafkaPartition(name, number), timeout=_SECONDS)
        consumer.assign([KafkaPartition(name, number, start)])
        records = []
        while True:
            message = consumer.poll(_SECONDS)
            assert message is not None, f"{name}-{number} is not read to its end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                break
            found: list[Any] = list(message.headers() or ())
            headers = [[key, _text(value)] for key, value in found]
            records.append(
                [message.offset(), message.timestamp()[1], _text(message.key()), _text(message.value()), headers]
            )
    return {"start": start, "end": end, "records": records}


def _fill(producer: Producer, transactional: Producer, name: str, number: int, partition: dict[str, Any]) -> None:
    """Write records to the same offsets; transactions fill the gaps, as their ends take an offset."""
    records = partition["records"]
    at = 0
    for index, record in enumerate(records):
        if record[0] > at:
            _waste(transactional, name, number, record[0] - at)
        after = records[index + 1][0] if index + 1 < len(records) else partition["end"]
        gap = after - record[0] - 1
        if gap == 1:
            transactional.begin_transaction()
            _produce(transactional, name, number, record)
            transactional.commit_transaction(_SECONDS)
        else:
            _produce(producer, name, number, record)
        at = record[0] + (2 if gap == 1 else 1)
    if partition["end"] > at:
        _waste(transactional, name, number, partition["end"] - at)


def _waste(transactional: Producer, name: str, number: int, count: int) -> None:
    """Take `count` offsets, at least 2, with nothing to read: records, and the end of their transaction."""
    assert count > 1, f"{name}-{number} begins with a gap of one offset"
    transactional.begin_transaction()
    for _ in range(count - 1):
        transactional.produce(name, _FILLER, partition=number)
    transactional.flush(_SECONDS)
    transactional.abort_transaction(_SECONDS)


def _produce(producer: Producer, name: str, number: int, record: list[Any]) -> None:
    _, timestamp, key, value, headers = record
    failed: list[Any] = []
    producer.produce(
        name,
        key=_bytes(key),
        value=_bytes(value),
        partition=number,
        timestamp=timestamp,
        headers=[(header, _bytes(data)) for header, data in headers],
        on_delivery=lambda error, _: failed.append(error) if error else None,
    )
    producer.flush(_SECONDS)
    assert not failed, failed


@contextmanager
def _consumer(bootstrap: str, group: str = "dump") -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    with closing(Consumer(settings)) as consumer:
        yield consumer


def _text(data: Any) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
