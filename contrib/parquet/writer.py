"""ParquetWriter: rows that wait in the store of a task, the parts that commits decide, and their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock import KeyValueStore, SinkError, SinkPlace, SinkRecord, StagedWriter
from penstock.contrib.arrow.library import load
from penstock.contrib.arrow.rows import RowMaker

from .files import Part, PartWriter
from .location import Folder
from .manifest import last_manifest, manifest_name, place_name

_STATE = "state"
_FORM = 1
_CHUNK_BYTES = 256 * 1024
"""About the most bytes of a chunk: changelogs in topics refuse records of more than a megabyte."""


@dataclass(frozen=True)
class Limits:
    """When a file is complete: so many rows, about so many bytes in memory, or so many ms after its first row."""

    rows: int
    size: int
    age_ms: int


@dataclass
class _State:
    """What the store says beside the chunks. `rows`, of about `size` bytes, wait since the wall clock `since` (ms)."""

    place: str = ""
    topic_id: str = ""
    number: int = 0
    """The number of the next part."""
    next_offset: int = 0
    first_offset: int = 0
    """The offset at which the next part begins."""
    first_chunk: int = 0
    next_chunk: int = 0
    rows: int = 0
    size: int = 0
    since: int = 0
    columns: dict[str, str] = field(default_factory=dict)
    partition_by: dict[str, str] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    """Those that a commit has decided, and that are not known to be written."""

    def to_bytes(self) -> bytes:
        return json.dumps({"form": _FORM, **asdict(self)}, separators=(",", ":")).encode()


def _read(data: bytes) -> _State:
    content = json.loads(data)
    if content.pop("form") != _FORM:
        raise SinkError("its state was written by a later version of penstock: install that")
    content["parts"] = [Part(**each) for each in content["parts"]]
    return _State(**content)


class ParquetWriter(StagedWriter):
    """The open target of one task. Rows are put into the store as chunks: record batches in Arrow's IPC format.

    `columns`: the types of the schema's columns by name.
    """

    def __init__(
        self,
        folder: Folder,
        place: SinkPlace,
        rows: RowMaker,
        columns: Mapping[str, str],
        partition_by: Mapping[str, str],
        limits: Limits,
        options: Mapping[str, Any],
    ) -> None:
        self._folder = folder
        self._place = place
        self._rows = rows
        self._columns = dict(columns)
        self._partition_by = dict(partition_by)
        self._limits = limits
        self._files = PartWriter(folder, place, partition_by, options)
        self._state = _State()
        self._has_other_schema = False
        folder.check(place_name(place))

    def begin(self, store: KeyValueStore[str, bytes], topic_id: str) -> None:
        self._store = store
        data = store.get(_STATE)
        if data is None:
            self._state = self._first_state(topic_id)
            return
        self._state = state = _read(data)
        if state.place != place_name(self._place):
            # The application was resharded: this is the state of a task of the earlier layout.
            if state.rows or state.parts:
                raise SinkError(f"its store has rows of {state.place}, and this is {place_name(self._place)}")
            self._state = self._first_state(topic_id)
            return
        if state.topic_id and topic_id and state.topic_id != topic_id:
            raise self._made_again(state.topic_id, topic_id)
        self._check_files(state)
        self._check_schema(state)

    def _first_state(self, topic_id: str) -> _State:
        """Return the state of a new task: behind the files that it wrote before a reset of the application."""
        last = last_manifest(self._folder, self._place)
        if last is None:
            return _State(place_name(self._place), topic_id)
        if last.topic_id != topic_id or last.topic != self._place.topic:
            raise self._made_again(last.topic_id, topic_id)
        return _State(place_name(self._place), topic_id, last.number + 1, last.next_offset, last.next_offset)

    def _made_again(self, before: str, now: str) -> SinkError:
        return SinkError(
            f"it has files of {self._place.topic}, partition {self._place.partition}, of a topic with the id {before}, "
            f"and this one has the id {now}: the topic was deleted and made again, as by `penstock reset`, or this is "
            "another log. Records of the earlier one are in the files: give the sink another name. Or delete the "
            f"files named part~{place_name(self._place)}~*, and the folder _manifest/{place_name(self._place)}, and "
            "`penstock reset` the application"
        )

    def _check_files(self, state: _State) -> None:
        """Compare the location with the state. Raises SinkError for an earlier, a later or another one."""
        written = state.number - len(state.parts)
        after = manifest_name(self._place, state.number)
        if self._folder.exists(after):
            raise SinkError(
                f"it has {after}, and the application's last commit has decided no such file: the application was "
                "restored from a backup, or two have one id. Bring back the later application, or give the sink "
                "another name"
            )
        last = manifest_name(self._place, written - 1)
        if written and not self._folder.exists(last):
            raise SinkError(
                f"it lacks {last}, which an earlier commit wrote: it was restored from a backup, or is another "
                "location. Bring back the files, or give the sink another name"
            )

    def _check_schema(self, state: _State) -> None:
        """Compare the schema with that of the rows so far. Raises SinkError for a change that is none of columns added.

        Rows that wait go into a file of their own.
        """
        if not state.columns or (state.columns == self._columns and state.partition_by == self._partition_by):
            return
        if state.partition_by != self._partition_by:
            raise SinkError(
                f"partition_by was {state.partition_by or 'empty'}, and is {self._partition_by or 'empty'}: give the "
                "sink another name, or another location and another name"
            )
        for name, type_ in state.columns.items():
            if self._columns.get(name) != type_:
                raise SinkError(
                    f"column {name!r} was {type_}, and is {self._columns.get(name, 'not there')}: only columns that "
                    "may be null can be added. Take the earlier schema, add a column under another name, or give the "
                    "sink another name"
                )
        for name, type_ in self._columns.items():
            if name not in state.columns and type_.endswith(" not null"):
                raise SinkError(
                    f"column {name!r} ({type_}) is new, and earlier files have no value there: let it be null"
                )
        self._has_other_schema = True

    @property
    def due(self) -> int | None:
        state = self._state
        if state.parts or (self._has_other_schema and state.rows):
            return 0
        return state.since + self._limits.age_ms if state.rows else None

    def stage(self, records: Sequence[SinkRecord], now_ms: int) -> Callable[[], None] | None:
        state, store = self._state, self._store
        records = [record for record in records if record.offset >= state.next_offset]
        batch = self._rows.batch(records) if records else None  # first: after a refusal nothing has changed
        write = self._take_parts()
        if self._has_other_schema and state.rows:
            self._decide(state.next_offset)
        self._has_other_schema = False
        if batch is not None:
            state.columns, state.partition_by = self._columns, self._partition_by
            self._add(records, batch, now_ms)
        if state.rows and now_ms >= state.since + self._limits.age_ms:
            self._decide(state.next_offset)
        store.put(_STATE, state.to_bytes())
        return write

    def _take_parts(self) -> Callable[[], None] | None:
        """Delete the chunks of the parts that the last commit has decided; return the function that writes those."""
        state, store = self._state, self._store
        work: list[tuple[Part, list[bytes]]] = []
        for part in state.parts:
            keys = [_chunk_key(number) for number in range(part.first_chunk, part.next_chunk)]
            chunks = [chunk for key in keys if (chunk := store.get(key)) is not None]
            if len(chunks) < len(keys):
                raise SinkError(f"its store has not all rows of part {part.number}: was it not logged, or dropped?")
            work.append((part, chunks))
            store.put_all((key, None) for key in keys)
        state.parts = []
        if not work:
            return None
        files, topic_id = self._files, state.topic_id

        def write() -> None:
            for part, chunks in work:
                files.write(part, topic_id, chunks)

        return write

    def _add(self, records: Sequence[SinkRecord], batch: Any, now_ms: int) -> None:
        """Put rows into the store, and decide the parts that are complete."""
        state, limits, store = self._state, self._limits, self._store
        row_bytes = max(1, batch.nbytes // batch.num_rows)
        at, count = 0, batch.num_rows
        while at < count:
            if not state.rows:
                state.since = now_ms
            room = max(1, -(-(limits.size - state.size) // row_bytes))
            size = min(count - at, limits.rows - state.rows, room, max(1, _CHUNK_BYTES // row_bytes))
            store.put(_chunk_key(state.next_chunk), _encoded(batch.slice(at, size)))
            at += size
            state.next_chunk += 1
            state.rows += size
            state.size += size * row_bytes
            state.next_offset = records[at - 1].offset + 1
            if state.rows >= limits.rows or state.size >= limits.size:
                self._decide(state.next_offset)

    def _decide(self, next_offset: int) -> None:
        """End the part of the rows that wait: it is written after the commit that is made now."""
        state = self._state
        part = Part(
            state.number, state.first_chunk, state.next_chunk, state.first_offset, next_offset, state.rows
        )  # fmt: skip
        state.parts = [*state.parts, part]
        state.number += 1
        state.first_chunk, state.first_offset = state.next_chunk, next_offset
        state.rows = state.size = 0

    def close(self) -> None:
        pass


def _chunk_key(number: int) -> str:
    return f"rows/{number:016d}"


def _encoded(batch: Any) -> bytes:
    pa = load()
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_batch(batch)
    return bytes(buffer.getvalue())
