"""Part: the records of one file, or of one for each directory, as a commit has decided; and how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from penstock import SinkPlace
from penstock.contrib.arrow.library import load
from penstock.contrib.arrow.rows import TIMESTAMP

from .location import Folder
from .manifest import Manifest, data_name, manifest_name, place_name


@dataclass(frozen=True)
class Part:
    """The rows of chunks `first_chunk` up to `next_chunk`, of the records between two offsets."""

    number: int
    first_chunk: int
    next_chunk: int
    first_offset: int
    next_offset: int
    rows: int


class PartWriter:
    """Writes the parts of one place. Names and content follow from the part, so a second attempt writes the same."""

    def __init__(
        self, folder: Folder, place: SinkPlace, partition_by: Mapping[str, str], options: Mapping[str, Any]
    ) -> None:
        self._folder = folder
        self._place = place
        self._partition_by = partition_by
        self._options = options

    def write(self, part: Part, topic_id: str, chunks: Sequence[bytes]) -> None:
        """Write the data files, then the manifest that names them; nothing if that is there.

        Raises SinkUnavailableError.
        """
        folder, place, aside = self._folder, self._place, place_name(self._place)
        manifest = manifest_name(place, part.number)
        if folder.exists(manifest):
            return
        pa = load()
        batches = [pa.ipc.open_stream(each).read_next_batch() for each in chunks]
        table = pa.Table.from_batches(batches).combine_chunks()
        files: dict[str, int] = {}
        for folders, rows in self._divided(table):
            name = data_name(place, part.number, folders)
            files[name] = rows.num_rows
            folder.write(name, self._encoded(rows), aside)
        columns = {field.name: _type_text(field) for field in table.schema if field.name != TIMESTAMP}
        content = Manifest(
            place.application_id, place.sink, place.topic, topic_id, place.partition, part.number, part.first_offset,
            part.next_offset, part.rows, columns, files,
        )  # fmt: skip
        folder.write(manifest, content.to_bytes(), aside)

    def _encoded(self, rows: Any) -> Any:
        pa = load()
        buffer = pa.BufferOutputStream()
        pa.parquet.write_table(rows, buffer, **self._options)
        return buffer.getvalue()

    def _divided(self, table: Any) -> Iterator[tuple[Sequence[str], Any]]:
        """Yield the directories of each file, and its rows."""
        if not self._partition_by:
            yield (), table
            return
        pc = load().compute
        times = table.column(TIMESTAMP)
        seconds = pc.cast(pc.floor(pc.divide(pc.cast(times, "double"), 1000.0)), "int64")
        folders = {each: self._folders(each) for each in pc.unique(seconds).to_pylist()}
        names = sorted(set(folders.values()))
        numbers = {name: number for number, name in enumerate(names)}
        table = table.drop_columns([TIMESTAMP])
        if len(names) == 1:
            yield names[0], table
            return
        pa = load()
        keys = pa.array(folders)
        values = pa.array([numbers[each] for each in folders.values()], pa.int32())
        number_of = pc.take(values, pc.index_in(seconds, keys))
        for number, name in enumerate(names):
            yield name, table.filter(pc.equal(number_of, number))

    def _folders(self, second: int) -> tuple[str, ...]:
        at = datetime.fromtimestamp(second, UTC)
        return tuple(f"{name}={quote(at.strftime(form), safe='')}" for name, form in self._partition_by.items())


def _type_text(field: Any) -> str:
    return str(field.type) if field.nullable else f"{field.type} not null"
