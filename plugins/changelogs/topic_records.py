"""Rows of stores as records of changelog topics, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

from penstock import ChangelogError, Headers, OutputBatch, RecordBatch, StoreKind, TopicPartition, TopicRows
from penstock.hooks import registry
from penstock.store import Change
from penstock.store.kept_store import KeptStore
from penstock.store.specs import OWN
from penstock.stores.rows.envelope import PLAIN, unwrap, wrap
from penstock.support.packages import DISTRIBUTION

_KIND, _EXPIRY, _WALL_CLOCK_EXPIRY = "__penstock.timestamped", "__penstock.expiry", "__penstock.wall_clock_expiry"
_OURS = frozenset({_KIND, _EXPIRY, _WALL_CLOCK_EXPIRY})
_LONG = Struct(">q")


class _BytesAsTheyAre:
    """Rows of a kind that is not penstock's: their bytes are no envelope, and are the record's value as they are."""

    def record_of(self, row_key: bytes, data: bytes | None) -> tuple[bytes, bytes | None, int | None]:
        return row_key, None if data is None else PLAIN + data, None

    def row_of(self, key: bytes, data: bytes | None, timestamp: int) -> tuple[bytes, bytes | None]:
        return key, None if data is None else unwrap(data).value


def rows_of(kept: KeptStore) -> TopicRows | None:
    """Return the form of a store's rows as records; None where a row is an envelope, and its record has its key."""
    if kept.kind == OWN:
        return _BytesAsTheyAre()
    found = registry().find("store kind", kept.kind)
    kind = found.load()
    if isinstance(kind, StoreKind):
        return kind.topic_rows(kept.fixed_options)
    return None if found.package == DISTRIBUTION else _BytesAsTheyAre()


def encode(
    rows: Iterable[Change], partition: TopicPartition, stamped: bool, now_ms: int, topic_rows: TopicRows | None
) -> OutputBatch:
    """Return rows as records of a changelog topic; entries without a timestamp get `now_ms`."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    timestamps: list[int] = []
    headers: list[Headers] = []
    for key, data in rows:
        extra: Headers = ()
        timestamp = now_ms
        if topic_rows is not None:
            key, data, at = topic_rows.record_of(key, data)
            timestamp = now_ms if at is None else max(at, 1)
        keys.append(key)
        if data is None:
            values.append(None)
        elif not stamped and data[:1] == PLAIN:
            values.append(data[1:])
        else:
            envelope = unwrap(data)
            values.append(envelope.value)
            extra = envelope.headers
            if envelope.timestamp is not None:
                timestamp = envelope.timestamp
            if (envelope.timestamp is not None) != stamped or timestamp < 1:
                # The entry has no timestamp in a timestamped store, one in another store, or one that a log may change.
                kept = None if envelope.timestamp is None else _LONG.pack(envelope.timestamp)
                extra = (*extra, (_KIND, kept))
                timestamp = max(timestamp, 1)
            if envelope.expiry is not None:
                name = _WALL_CLOCK_EXPIRY if envelope.by_wall_clock else _EXPIRY
                extra = (*extra, (name, _LONG.pack(envelope.expiry)))
        timestamps.append(timestamp)
        headers.append(extra)
    targets = [(partition.partition,)] * len(keys)
    return OutputBatch(partition.topic, keys, values, timestamps, headers if any(headers) else None, list(targets))


def decode(batch: RecordBatch, stamped: bool, topic_rows: TopicRows | None) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the rows in a batch of a changelog topic. Raises ChangelogError for a record that is none."""
    if topic_rows is None and batch.headers is None and not stamped:
        # Most entries are like this, and a restore has millions.
        entries = zip(batch.keys, batch.values, strict=True)
        return ((key, None if value is None else PLAIN + value) for key, value in entries if key is not None)
    rows = _decode_records(batch, stamped)
    if topic_rows is None:
        return ((key, data) for key, data, _ in rows)
    return (topic_rows.row_of(key, data, timestamp) for key, data, timestamp in rows)


def _decode_records(batch: RecordBatch, stamped: bool) -> Iterator[tuple[bytes, bytes | None, int]]:
    headers = batch.headers if batch.headers is not None else [()] * len(batch.keys)
    for key, value, timestamp, extra in zip(batch.keys, batch.values, batch.timestamps, headers, strict=True):
        if key is None:
            continue
        if value is None:
            yield key, None, timestamp
        elif not extra and not stamped:
            yield key, PLAIN + value, timestamp
        else:
            at: int | None = timestamp if stamped else None
            expiry: int | None = None
            by_wall_clock = False
            kept: list[tuple[str, bytes | None]] = []
            for name, content in extra:
                if name in _OURS and content is not None and len(content) != _LONG.size:
                    raise ChangelogError(
                        f"changelog topic {batch.topic!r}, partition {batch.partition}: the entry of key {key!r} has a "
                        f"header {name!r} that no penstock wrote, or that was damaged. Only the application may write "
                        "there; `penstock reset` starts it afresh"
                    )
                if name == _KIND:
                    at = None if content is None else _LONG.unpack(content)[0]
                elif name in _OURS and content is not None:
                    expiry, by_wall_clock = _LONG.unpack(content)[0], name == _WALL_CLOCK_EXPIRY
                else:
                    kept.append((name, content))
            yield key, wrap(value, at, tuple(kept), expiry, by_wall_clock), timestamp
