"""Steps: reads what a restore needs from the files of a changelog."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

from penstock import ChangelogError, Work
from penstock.changelog import RESTORING
from penstock.store import Change, Changes
from penstock.store.backend import in_key_order

from .chain import Delta
from .file_format import DELTA, SNAPSHOT, DamagedError, Reader
from .listing import snapshot_name
from .storage import Storage

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
        """Yield a snapshot in parts; `way_out` is asked what to do if it is damaged. Adds to `work` the bytes read."""
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
        """Yield what each delta holds; from a place with slow answers, several files are asked for at once."""
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
