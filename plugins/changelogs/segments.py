"""Reads a changelog directory: its files, the deltas in them, and the steps of a restore."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import BinaryIO, NamedTuple

from penstock import RESTORING, ChangelogError, Commit, StoredFile, Work, version_counter
from penstock.store import Change, Changes
from penstock.store.backend import in_key_order

from .chain import Delta, Route, route_to
from .file_format import DELTA, OPENING_BYTES, SNAPSHOT, DamagedError, Reader
from .storage import TEMPORARY, Storage

DELTA_END = ".delta"
_VERSION = r"[0-9]+-[A-Za-z0-9_-]*"
_DELTA_NAME = re.compile(rf"({_VERSION})\.({_VERSION}|-)\.(\d+)\.delta")
_SNAPSHOT_NAME = re.compile(rf"({_VERSION})\.snapshot")


@dataclass
class Listing:
    """One listing of a task's folder, by version.

    `deltas`: the first delta of each file, by version. `continued`: files that are larger than their first delta.
    `damaged`: versions whose file is smaller than its name says, each with a description. `ours`: every file that this
    changelog wrote.
    """

    ours: list[StoredFile] = field(default_factory=list)
    deltas: dict[str, Delta] = field(default_factory=dict)
    continued: set[str] = field(default_factory=set)
    snapshots: dict[str, StoredFile] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)
    """Damaged snapshots that a search for a route has met."""

    @classmethod
    def of(cls, stored: Iterable[StoredFile]) -> Listing:
        """Return the listing that file names and sizes give; other programs' files are left out."""
        files = cls()
        for file in stored:
            if delta := _DELTA_NAME.fullmatch(file.name):
                version, previous, size = delta[1], None if delta[2] == "-" else delta[2], int(delta[3])
                if file.size >= size:
                    files.deltas[version] = Delta(version, previous, size, file.name)
                    if file.size > size:
                        files.continued.add(file.name)
                else:
                    files.damaged[version] = f"{file.name} ({file.size} bytes instead of {size})"
            elif snapshot := _SNAPSHOT_NAME.fullmatch(file.name):
                files.snapshots[snapshot[1]] = file
            elif not file.name.endswith(TEMPORARY):
                continue
            files.ours.append(file)
        return files


def snapshot_name(version: str) -> str:
    """Return the file name of a version's snapshot."""
    return f"{version}.snapshot"


def delta_name(version: str, previous: str | None, size: int) -> str:
    """Return the name of the file that begins with a delta of `size` bytes."""
    return f"{checked_version(version)}.{'-' if previous is None else checked_version(previous)}.{size}{DELTA_END}"


def is_version(name: str) -> bool:
    """Return whether a name can be that of a version in a file."""
    return re.fullmatch(_VERSION, name) is not None


def checked_version(version: str) -> str:
    """Return `version`. Raises ChangelogError when it cannot be part of a file name."""
    if not is_version(version):
        raise ChangelogError(
            f"version {version!r} cannot be a file's name: expected a number, '-', and letters, digits, '_' and '-'"
        )
    return version


def is_left_over(name: str, version: str) -> bool:
    """Return whether a file is temporary and may be deleted: one for a successor of `version` may be in use."""
    counter = name.partition("-")[0]
    return name.endswith(TEMPORARY) and not (counter.isdigit() and int(counter) > version_counter(version))


_READ_AHEAD_BYTES = 16 * 1024 * 1024


class _Read(NamedTuple):
    """One delta: its changes, the version after it, and its size in the file."""

    changes: Changes
    version: str
    size: int


class Steps:
    """Reads deltas and snapshots as steps of `chunk_bytes`. Raises ChangelogError that names a damaged file."""

    def __init__(self, storage: Storage, chunk_bytes: int) -> None:
        self._storage = storage
        self._chunk_bytes = chunk_bytes

    def of_deltas(self, deltas: list[Delta], work: Work) -> Iterator[tuple[Changes, str]]:
        """Yield deltas; runs of small ones as one step, because a write to a store costs more than what is in them.

        Adds to `work` the bytes that are read.
        """
        group: list[Changes] = []
        size, version = 0, ""
        for changes, version, length in self._read_all(deltas):
            group.append(changes)
            size += length
            work.done += length
            if size >= self._chunk_bytes:
                yield _merged(group), version
                group, size = [], 0
        if group:
            yield _merged(group), version

    def of_snapshot(self, version: str, way_out: Callable[[], str], work: Work) -> Iterator[tuple[Changes, str]]:
        """Yield a snapshot in parts; `way_out` returns advice if it is damaged. Adds to `work` the bytes read."""
        name = snapshot_name(version)
        chunk: Changes = {}
        try:
            with self._open(name) as file:
                reader = Reader(file, SNAPSHOT)
                reader.expect(version, None)
                before = work.done
                for number, (store, rows) in enumerate(reader.chunks()):
                    work.done = before + reader.size
                    if number:
                        yield chunk, f"{RESTORING}{version}:{number}"
                    chunk = {store: rows}
                reader.end()
        except DamagedError as error:
            raise ChangelogError(f"{self._storage.named}: {name} is damaged: {error}. {way_out()}") from error
        # The last step: the file has turned out to be complete.
        yield chunk, version

    def _read_all(self, deltas: list[Delta]) -> Iterator[_Read]:
        """Yield the changes of each delta; a slow store is asked for several files at once."""
        if len(deltas) == 1 or self._storage.parallel_reads == 1:
            for delta in deltas:
                yield from self._read(delta)
            return
        world, left = self._storage.world, deque(deltas)
        reading: deque[tuple[Delta, Future[list[_Read]]]] = deque()
        with world.threads(self._storage.parallel_reads, "changelog-read") as pool:
            try:
                while left or reading:
                    while left and len(reading) < self._storage.parallel_reads:
                        if reading and sum(delta.size for delta, _ in reading) + left[0].size > _READ_AHEAD_BYTES:
                            break
                        reading.append((left[0], pool.submit(lambda delta: list(self._read(delta)), left.popleft())))
                    _, read = reading.popleft()
                    world.wait([read])
                    yield from read.result()
            finally:
                for _, unread in reading:
                    unread.cancel()

    def _read(self, delta: Delta) -> Iterator[_Read]:
        at, previous = delta.start, delta.previous
        try:
            with self._open(delta.file, delta.start) as file:
                for number in range(1, delta.length + 1):
                    reader = Reader(file, DELTA)
                    reader.expect(delta.version if number == delta.length else reader.version, previous)
                    yield _Read(_changes(reader), reader.version, reader.size)
                    at, previous = at + reader.size, reader.version
        except DamagedError as error:
            raise ChangelogError(
                f"{self._storage.named}: {delta.file} is damaged at byte {at}: {error}. {self._storage.ways_out}"
            ) from error

    @contextmanager
    def _open(self, name: str, start: int = 0) -> Iterator[BinaryIO]:
        with self._storage.explaining(f"read {name}"):
            try:
                with self._storage.open(name, start) as file:
                    yield file
            except FileNotFoundError as error:
                raise ChangelogError(
                    f"{self._storage.named}: {name} was deleted while it was needed "
                    f"(did another process clean up while this one was paused?): start again. {self._storage.ways_out}"
                ) from error


def _changes(reader: Reader) -> Changes:
    changes: dict[str, list[Change]] = {}
    for store, rows in reader.chunks():
        if store in changes:
            changes[store] += rows
        else:
            changes[store] = rows
    return changes


def _merged(group: list[Changes]) -> Changes:
    if len(group) == 1:
        return group[0]
    merged: dict[str, dict[bytes, bytes | None]] = {}
    for changes in group:
        for store, rows in changes.items():
            merged.setdefault(store, {}).update(rows)
    return {store: in_key_order(latest) for store, latest in merged.items()}


class _Damage(NamedTuple):
    """The damage in a file, and the counter of the last readable delta before it."""

    description: str
    after: int


def further(storage: Storage, reached: Delta, target: str) -> Delta | None:
    """Return the deltas up to `target` that directly follow `reached` in its file; None if they are not all there.

    It reads only these deltas, so that following a task costs as much as the task writes.
    """
    start = end = reached.start + reached.size
    at, length = reached.version, 0
    with (
        storage.explaining(f"read {reached.file}"),
        suppress(FileNotFoundError, DamagedError),
        storage.open(reached.file, start) as file,
    ):
        while at != target and (opening := file.read(OPENING_BYTES)):
            reader = Reader(file, DELTA, opening)
            if reader.previous != at:
                return None
            reader.skip()
            at, end, length = reader.version, end + reader.size, length + 1
        return Delta(target, reached.version, end - start, reached.file, start, length) if at == target else None
    return None


class Segments:
    """The deltas in `files`, one listing. A segment is a file whose deltas follow each other.

    What is found is not kept, so an object of this class costs no memory for each delta. Methods raise ChangelogError
    when a file cannot be read; a file that is gone meanwhile has no deltas.
    """

    def __init__(self, storage: Storage, files: Listing) -> None:
        self._storage = storage
        self.files = files
        self._damages: dict[str, _Damage] = {}

    def route(self, target: str, stops: Collection[str]) -> Route:
        """Return the way to `target` from the nearest of `stops`, or from the beginning."""
        return route_to(target, lambda version: self._leading_to(version, stops), stops)

    def route_from(self, have: str, target: str) -> Route | None:
        """Return the route from `have` to `target`; None if `have` is not before it in the chain."""
        if not is_version(have):
            return None
        counter = version_counter(have)
        route = route_to(
            target,
            # What is below `have` cannot follow it: do not read it.
            lambda each: (
                self._leading_to(each, (have,)) if is_version(each) and version_counter(each) > counter else None
            ),
            (have,),
        )
        return route if route.start == have else None

    def _leading_to(self, version: str, stops: Collection[str]) -> Delta | None:
        """Return the deltas of one file up to `version`: from the last of `stops` in it, or from its beginning."""
        first = self.files.deltas.get(version)
        if first is not None:
            return self._search(first, version, stops) if first.file in self.files.continued else first
        if not is_version(version) or version in self.files.damaged:
            return None
        for each in self._longer_below(version_counter(version)):
            if (found := self._search(each, version, stops)) is not None:
                return found
        return None

    def _longer_below(self, counter: int) -> Iterator[Delta]:
        """Yield the first deltas of files that may have a version of `counter` behind them, the nearest one first."""
        return (first for at, first in self._longer if at < counter)

    @cached_property
    def _longer(self) -> list[tuple[int, Delta]]:
        # Where files grow, their sizes in a listing may be old (NFS).
        first = [
            (version_counter(delta.version), delta)
            for delta in self.files.deltas.values()
            if self._storage.can_append or delta.file in self.files.continued
        ]
        return sorted(first, key=lambda each: each[0], reverse=True)

    def _search(self, first: Delta, version: str, stops: Collection[str]) -> Delta | None:
        start = length = 0
        previous: str | None = None
        found: Delta | None = None
        at = 0
        # To the end, also behind what was found: a torn tail is to be named.
        for reader in self._readers(first.file):
            if found is None:
                if not length or reader.previous in stops:
                    start, previous, length = at, reader.previous, 0
                length += 1
            at += reader.size
            if reader.version == version:
                found = Delta(version, previous, at - start, first.file, start, length)
        return found

    def _readers(self, name: str) -> Iterator[Reader]:
        """Yield a reader of each whole delta of a file, at its end; note where a damaged one begins."""
        start, counter = 0, -1
        with self._storage.explaining(f"read {name}"), suppress(FileNotFoundError):
            try:
                with self._storage.open(name) as file:
                    while opening := file.read(OPENING_BYTES):
                        reader = Reader(file, DELTA, opening)
                        reader.skip()
                        start += reader.size
                        counter = version_counter(reader.version)
                        yield reader
            except DamagedError as error:
                self._damages[name] = _Damage(f"{name} (damaged at byte {start}: {error})", counter)

    # ------------------------------------------------------------ damage

    def torn(self, route: Route) -> list[str]:
        """Return a description of each file on a route that is damaged after the needed deltas."""
        files = dict.fromkeys(delta.file for delta in route.deltas)
        return [self._damages[file].description for file in files if file in self._damages]

    def lost(self, missing: str) -> list[str]:
        """Return a description of each file that may have had a version that `route` lacks."""
        if missing in self.files.damaged:
            return [self.files.damaged[missing]]
        counter = version_counter(missing) if is_version(missing) else -1
        first = self.files.deltas.get(missing)
        names = [first.file] if first is not None else [each.file for each in self._longer_below(counter)]
        damages = [self._damages[each] for each in names if each in self._damages]
        found = [damage.description for damage in damages if damage.after < counter]
        if first is None:
            found += [reason for each, reason in self.files.damaged.items() if version_counter(each) < counter]
        return found or [f"the file with the delta of {missing} (missing)"]

    # ------------------------------------------------------------ all versions

    def followed(self) -> set[str]:
        """Return the predecessors of deltas that exist, or may have existed in damaged files."""
        files = self.files
        there = {*files.deltas, *files.damaged, *files.snapshots}
        found = {delta.previous for delta in files.deltas.values()}
        for _, each in self._longer:
            for reader in self._readers(each.file):
                found.add(reader.previous)
                there.add(reader.version)
        lost = min((damage.after for damage in self._damages.values()), default=sys.maxsize)
        return {each for each in found if each is not None and (each in there or version_counter(each) > lost)}

    def commits_of(self, version: str) -> Iterator[Commit]:
        """Yield the commits of a version that deltas keep; damaged ones are left out."""
        names = {delta.file for delta in self.files.deltas.values() if version in (delta.previous, delta.version)}
        names.update(each.file for each in self._longer_below(version_counter(version)))
        for name in names:
            for reader in self._readers(name):
                if version in (reader.previous, reader.version) and (commit := reader.commit) is not None:
                    yield commit

    def ends_by(self, version: str, name: str) -> bool:
        """Return whether a file begins below `version` and ends with it or below. A damaged file ends at the damage."""
        counter = version_counter(version)
        if version_counter(name) >= counter:
            return False
        if name not in self.files.continued and not (self._storage.can_append and name.endswith(DELTA_END)):
            return True
        return all(
            reader.version == version or version_counter(reader.version) < counter for reader in self._readers(name)
        )
