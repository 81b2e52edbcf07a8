"""The format of the local log's rows: their keys, and record batches as bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

import msgpack

from penstock import Headers, LogError

from ..messages import about_bytes
from ..partitioner import Share

TARGET_BATCH_BYTES = 512 * 1024
"""About how large a stored batch gets: LMDB must find this much free space in one piece, and a reader decodes it
whole."""
_TARGET_BATCH_RECORDS = 8192
_SAMPLED_RECORDS = 256

_PARTITION = Struct(">II")
_BATCH = Struct(">IIQ")
_EXTENT = Struct("<QQQ")
_NUMBER = Struct("<Q")
_HEADER = Struct("<B3xIIIqq")
_FORMAT = 1
_pack = msgpack.Packer(autoreset=True).pack


class Extent(NamedTuple):
    """The extent of a partition: offsets from `start` up to, not including, `end`, in `size` bytes."""

    start: int
    end: int
    size: int

    def to_bytes(self) -> bytes:
        """Return the row."""
        return _EXTENT.pack(*self)

    @classmethod
    def from_bytes(cls, row: Any) -> Extent:
        """Read the row."""
        return cls(*_EXTENT.unpack(row))


class BatchHeader(NamedTuple):
    """The head of a stored batch, before its columns.

    It covers `span` offsets from its base on, and has `records` of them (fewer after compaction). `appended_ms`: time
    of the append, by the log's clock.
    """

    records: int
    span: int
    checksum: int
    max_timestamp: int
    appended_ms: int


@dataclass(slots=True)
class StoredColumns:
    """The records of a stored batch; `deltas` are their offsets less the batch's base, None when there are no gaps."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    headers: Sequence[Headers] | None
    deltas: Sequence[int] | None


class PackedBatch(NamedTuple):
    """A batch ready to be stored, without its base offset."""

    span: int
    data: bytes


class DamagedBatchError(ValueError):
    """A stored batch is damaged."""


def partition_key(topic_id: int, partition: int) -> bytes:
    """Return the key of a partition's row, and the prefix of its batches' keys."""
    return _PARTITION.pack(topic_id, partition)


def batch_key(topic_id: int, partition: int, base: int) -> bytes:
    """Return the key of a batch; keys sort by topic, partition, offset."""
    return _BATCH.pack(topic_id, partition, base)


def batch_base(key: Any) -> int:
    """Return the base offset that a batch's key holds."""
    base: int = _BATCH.unpack(key)[2]
    return base


def number(row: Any) -> int:
    """Read a row that holds one number; a missing row is 0."""
    return 0 if row is None else int(_NUMBER.unpack(row)[0])


def number_row(value: int) -> bytes:
    """Return the row that holds a number."""
    return _NUMBER.pack(value)


def named_key(application_id: str, rest: bytes = b"") -> bytes:
    """Return a key of an application: its id, a zero byte, and `rest`. Raises LogError for a zero byte in the id."""
    if "\0" in application_id:
        raise LogError(f"application id {application_id!r} has a zero character in it: choose another id")
    return application_id.encode() + b"\0" + rest


def pack_share(share: Share, appended_ms: int, *, use_append_time: bool) -> Iterator[PackedBatch]:
    """Return a partition's part of an output batch as batches of about the target size."""
    keys, values, headers = share.keys, share.values, share.headers
    timestamps = [appended_ms] * len(keys) if use_append_time else share.timestamps
    if headers is not None and not any(headers):
        headers = None
    total = len(keys)
    size = about_bytes(keys, _SAMPLED_RECORDS) + about_bytes(values, _SAMPLED_RECORDS)
    pieces = min(total, max(-(-size // TARGET_BATCH_BYTES), -(-total // _TARGET_BATCH_RECORDS)))
    step = -(-total // pieces)
    for at in range(0, total, step):
        if step == total:
            columns = StoredColumns(keys, values, timestamps, headers, None)
        else:
            part = slice(at, at + step)
            columns = StoredColumns(
                keys[part], values[part], timestamps[part], None if headers is None else headers[part], None
            )
        yield pack(columns, len(columns.keys), appended_ms)


def pack(columns: StoredColumns, span: int, appended_ms: int) -> PackedBatch:
    """Return one batch that covers `span` offsets."""
    body = _pack((columns.keys, columns.values, columns.timestamps, columns.headers, columns.deltas))
    header = _HEADER.pack(
        _FORMAT, len(columns.keys), span, zlib.crc32(body), max(columns.timestamps, default=-1), appended_ms
    )
    return PackedBatch(span, header + body)


def unpack_header(base: int, data: Any) -> BatchHeader:
    """Read a batch's header. Raises DamagedBatchError when there is none."""
    if len(data) < _HEADER.size or data[0] != _FORMAT:
        raise DamagedBatchError(f"the batch at offset {base} has no header")
    return BatchHeader(*_HEADER.unpack_from(data)[1:])


def unpack(base: int, data: Any) -> tuple[BatchHeader, StoredColumns]:
    """Read a batch. Raises DamagedBatchError when it is damaged."""
    header = unpack_header(base, data)
    body = data[_HEADER.size :]
    if zlib.crc32(body) != header.checksum:
        raise DamagedBatchError(f"the checksum of the batch at offset {base} is wrong")
    # Tuples, as headers must be; columns may be.
    return header, StoredColumns(*msgpack.unpackb(body, use_list=False))


def of_older_version(directory: str, what: str) -> LogError:
    """Return the error for a row in the form of an older version of penstock; `what` the row is of."""
    return LogError(
        f"local log {directory}: {what} in it was saved by an older version of penstock, which this version does not "
        "read: start with an empty directory (setting 'log')"
    )
