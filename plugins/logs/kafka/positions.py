"""Committed positions, with the state version and the engine's state in their metadata."""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from confluent_kafka import TopicPartition as KafkaPartition

from penstock import Commit, LogError, TopicPartition

_MOST_BYTES = 4_000
"""Kafka's default limit for an offset's metadata (`offset.metadata.max.bytes`) is 4,096."""
_NO_POSITION = '{"penstock":1,"position":null}'
"""The metadata of a position that does not count: Kafka cannot delete single positions of a group."""
_START = '{"penstock":1,"begin":true}'
"""The metadata of a position to start from, without a commit."""
_WHOLE_COPIES = 3
"""How many of a task's positions carry the engine's state, because a topic can be deleted with the position in it."""


@dataclass(frozen=True)
class PositionNote:
    """The metadata of one position. `engine_state` is None where only the version is kept; `at`: seconds since 1970.

    `copied`: the offset has a copy (`OffsetCopies`).
    """

    task_id: str
    version: str
    engine_state: bytes | None
    at: int = 0
    copied: bool = False

    def to_text(self) -> str:
        """Return this as metadata."""
        fields: dict[str, Any] = {"penstock": 1, "task": self.task_id, "version": self.version, "at": self.at}
        if self.engine_state is not None:
            fields["state"] = b64encode(self.engine_state).decode()
        if self.copied:
            fields["copied"] = True
        return json.dumps({**fields, "sum": _sum(fields)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | None) -> PositionNote | None:
        """Return parsed metadata; None for another program's, and without a commit. Raises LogError for damage."""
        if not text or text in (_NO_POSITION, _START) or '"penstock"' not in text:
            return None
        try:
            fields = json.loads(text)
            if fields["penstock"] != 1:
                raise LogError(
                    f"its metadata was written by a newer version of penstock: run that, or a later one ({text})"
                )
            if fields.pop("sum") == _sum(fields):
                state = fields.get("state")
                engine_state = None if state is None else b64decode(state)
                return cls(fields["task"], fields["version"], engine_state, fields["at"], "copied" in fields)
        except (ValueError, KeyError, TypeError):
            pass
        raise LogError(f"its metadata is damaged ({text})")


def _sum(fields: Mapping[str, Any]) -> str:
    return f"{crc32(json.dumps(fields, sort_keys=True).encode()):08x}"


def to_kafka(task_id: str, commit: Commit, *, copied: bool = False) -> list[KafkaPartition]:
    """Return a commit as offsets with metadata. Raises LogError when the engine's state is too large for metadata."""
    now = int(time.time())
    whole = PositionNote(task_id, commit.version, commit.engine_state, now, copied).to_text()
    short = PositionNote(task_id, commit.version, None, now, copied).to_text()
    if len(whole) > _MOST_BYTES:
        raise LogError(
            f"task {task_id}: what the engine has to remember takes {len(whole)} bytes, and Kafka keeps {_MOST_BYTES} "
            "beside a position; let the task read fewer topics, or schedule fewer punctuators"
        )
    return [
        KafkaPartition(each.topic, each.partition, position, metadata=whole if index < _WHOLE_COPIES else short)
        for index, (each, position) in enumerate(sorted(commit.positions.items()))
    ]


def from_kafka(task_id: str, found: Iterable[KafkaPartition]) -> tuple[Commit | None, int]:
    """Return the commit in a task's offsets, None if there is none, and when it was made (seconds since 1970).

    All positions of a commit carry its version; a position with an older version is of a topic that the task did not
    read for a while. Raises LogError when another program set a position, when metadata is damaged, or when every topic
    whose position carried the engine's state was deleted.
    """
    foreign: list[str] = []
    positions: dict[TopicPartition, int] = {}
    notes: dict[TopicPartition, PositionNote] = {}
    for each in found:
        if position_of(each) is None or _metadata_of(each) == _START:
            continue
        partition = TopicPartition(each.topic, each.partition)
        positions[partition] = each.offset
        try:
            note = PositionNote.from_text(_metadata_of(each))
        except LogError as error:
            raise LogError(
                f"task {task_id}: the committed position of {partition}: {error}. Nothing was changed; if it cannot be "
                "put right, `penstock reset` starts the application afresh"
            ) from None
        if note is None:
            foreign.append(f"{partition} (offset {each.offset})")
        else:
            notes[partition] = note
    if foreign:
        raise LogError(
            f"task {task_id}: the committed positions of {', '.join(foreign)} were set by another program, and its "
            "state does not belong to them. To start from other positions, use `penstock reset`, which takes care of "
            "both; if another program has the application's id as its consumer group, give one of them another"
        )
    if not notes:
        return None, 0
    version = max(note.version for note in notes.values())
    kept = [note for note in notes.values() if note.version == version]
    state = next((note.engine_state for note in kept if note.engine_state is not None), None)
    if state is None:
        raise LogError(
            f"task {task_id}: the topics whose positions had what the engine must remember (version {version}) were "
            "deleted; reset the application (`penstock reset`), or run it under another id"
        )
    return Commit(positions, version, state), max(note.at for note in kept)


def plain(partitions: Sequence[TopicPartition]) -> list[KafkaPartition]:
    """Return partitions as confluent-kafka's."""
    return [KafkaPartition(partition.topic, partition.partition) for partition in partitions]


def partition_of(found: KafkaPartition) -> TopicPartition:
    """Return the partition of a position."""
    return TopicPartition(found.topic, found.partition)


def _metadata_of(found: KafkaPartition) -> str | None:
    """Return the metadata of a position; None where it is no text, as another program's need not be."""
    try:
        return found.metadata
    except UnicodeDecodeError:
        return None


def position_of(found: KafkaPartition) -> int | None:
    """Return a committed position; None where there is none."""
    return None if found.offset < 0 or _metadata_of(found) == _NO_POSITION else int(found.offset)


def task_of(found: KafkaPartition) -> str | None:
    """Return the task that committed a position; None where no task did, or its metadata is damaged."""
    try:
        note = PositionNote.from_text(_metadata_of(found))
    except LogError:
        return None
    return None if note is None else note.task_id


def may_have_copy(found: KafkaPartition) -> bool:
    """Return whether a position is one that has a copy; a position to start from of an earlier version has none."""
    text = _metadata_of(found) or ""
    return text == _START or '"copied"' in text


def committed_at(found: KafkaPartition) -> int | None:
    """Return when (seconds since 1970) a task committed a position; None where no task did, or if it has a copy."""
    try:
        note = PositionNote.from_text(_metadata_of(found))
    except LogError:
        return None
    return None if note is None or note.copied else note.at


def without_position(partitions: Sequence[TopicPartition]) -> list[KafkaPartition]:
    """Return offsets to commit for partitions that have no position from then on."""
    return [KafkaPartition(partition.topic, partition.partition, 0, metadata=_NO_POSITION) for partition in partitions]


def start_positions(positions: Mapping[TopicPartition, int]) -> list[KafkaPartition]:
    """Return offsets to commit for positions to start from, without a commit of a task."""
    return [
        KafkaPartition(each.topic, each.partition, position, metadata=_START) for each, position in positions.items()
    ]
