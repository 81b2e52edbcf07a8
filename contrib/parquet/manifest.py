"""Manifests: one for each part of a partition's records, that names the data files; and the reader of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock import SinkError, SinkPlace

from .location import Folder, Location

MANIFESTS = "_manifest"
"""The folder of manifests. Spark and pyarrow leave folders out whose names begin with `_`."""
_FORM = 1
_SUFFIX = ".json"


@dataclass(frozen=True)
class Manifest:
    """What files have of one part of a partition: the records from `first_offset` up to `next_offset`.

    `files`: number of rows by path, in the location. `columns`: the types of the columns by name. Records that were
    refused and dropped are between the offsets, and in no file.
    """

    application: str
    sink: str
    topic: str
    topic_id: str
    partition: int
    number: int
    first_offset: int
    next_offset: int
    rows: int
    columns: Mapping[str, str]
    files: Mapping[str, int]

    def to_bytes(self) -> bytes:
        """Return it as JSON, always with the same bytes."""
        return json.dumps({"form": _FORM, **asdict(self)}, indent=1, ensure_ascii=False).encode()


def parsed(name: str, data: bytes) -> Manifest:
    """Return the manifest of these bytes. Raises SinkError, naming its file, where they are none."""
    try:
        content = json.loads(data)
        if content.pop("form") != _FORM:
            raise SinkError(f"manifest {name} was written by a later version of penstock")
        return Manifest(**content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SinkError(f"manifest {name} is damaged: {type(error).__name__}: {error}") from error


def place_name(place: SinkPlace) -> str:
    """Return the name of a place in names of files. Neither ids nor names of nodes have a "~"."""
    return f"{place.application_id}~{place.sink}~{place.partition:05d}"


def manifest_name(place: SinkPlace, number: int) -> str:
    """Return the path of a manifest in the location."""
    return f"{MANIFESTS}/{place_name(place)}/{number:09d}{_SUFFIX}"


def data_name(place: SinkPlace, number: int, folders: Sequence[str] = ()) -> str:
    """Return the path of a data file in the location."""
    return "/".join([*folders, f"part~{place_name(place)}~{number:09d}.parquet"])


def last_manifest(folder: Folder, place: SinkPlace) -> Manifest | None:
    """Return the last manifest of a place."""
    names = [name for name in folder.names(f"{MANIFESTS}/{place_name(place)}") if name.endswith(_SUFFIX)]
    if not names:
        return None
    name = f"{MANIFESTS}/{place_name(place)}/{names[-1]}"
    return parsed(name, folder.read(name))


def read_manifests(
    location: str, *, application: str | None = None, sink: str | None = None, filesystem: Any = None
) -> list[Manifest]:
    """Return the manifests in a location, those of an application or a sink alone if it is named.

    By application, sink, partition and number. Raises SinkError for a location that cannot be read.
    """
    folder = Location(location, filesystem).open()
    found = []
    for place in folder.names(MANIFESTS):
        parts = place.split("~")
        if len(parts) == 3 and application in (None, parts[0]) and sink in (None, parts[1]):
            found += list(_of_place(folder, f"{MANIFESTS}/{place}"))
    return found


def _of_place(folder: Folder, path: str) -> Iterator[Manifest]:
    for name in folder.names(path):
        if name.endswith(_SUFFIX):
            yield parsed(f"{path}/{name}", folder.read(f"{path}/{name}"))


def read_files(
    location: str, *, application: str | None = None, sink: str | None = None, filesystem: Any = None
) -> list[str]:
    """Return the paths, or URLs, of the data files that manifests name: for pyarrow, pandas or Spark.

    Files whose part of the records is not complete yet are not among them. Raises SinkError for a location that cannot
    be read.
    """
    manifests = read_manifests(location, application=application, sink=sink, filesystem=filesystem)
    root = Location(location, filesystem).text.rstrip("/")
    return [f"{root}/{path}" for manifest in manifests for path in manifest.files]
