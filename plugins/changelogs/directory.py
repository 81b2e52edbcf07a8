"""The `directory` changelog: one file a delta and one a snapshot, on a disk or in any object store pyarrow.fs knows."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from penstock.changelog import Restore, TaskChangelog, version_counter
from penstock.errors import ChangelogError
from penstock.log import Commit
from penstock.store import Change, Changes

from .chain import Delta, Route, latest_of, proven, route_to
from .file_format import (
    DELTA,
    SNAPSHOT,
    TAIL_BYTES,
    DamagedError,
    Reader,
    check_tail,
    write_delta,
    write_snapshot,
)
from .listing import Listing, checked_version, snapshot_name
from .storage import TEMPORARY, Storage, open_storage

_log = logging.getLogger(__name__)

_FILE_COST = 4096
"""What a file costs beside its bytes, when deltas are weighed against a snapshot: a disk's block, a store's request."""
_READ_AHEAD_BYTES = 16 * 1024 * 1024


class DirectoryChangelog(TaskChangelog):
    """A task's changelog in the folder LOCATION/APPLICATION ID/TASK ID.

    LOCATION is a path on this host (written with fsync), or a URL that `pyarrow.fs.FileSystem.from_uri` knows
    (s3://, gs://, hdfs://, abfs://; file:// is a path). `?compression=zlib` at its end makes files a third to a
    half as large and writing them several times slower; both kinds can be read in either case.

    A delta is the file `VERSION.PREVIOUS.BYTES.delta` (PREVIOUS is `-` for the first version), a snapshot
    `VERSION.snapshot`; a file being written ends in `.tmp`. So one listing shows the whole chain and every file
    that was cut off. `file_format` describes what is in them.

    A snapshot is restored in steps of about `chunk_bytes`. The version after each but the last of them is
    `restoring:...`, which no chain contains: a copy that crashed between them is restored afresh.
    """

    def __init__(
        self,
        location: str,
        application_id: str,
        task_id: str,
        *,
        chunk_bytes: int = 1024 * 1024,
        snapshot_floor_bytes: int = 4 * 1024 * 1024,
        open_storage: Callable[..., Storage] = open_storage,
    ) -> None:
        """Open without reading or writing. Deltas of less than `snapshot_floor_bytes` in all need no snapshot."""
        place, self._compress = _compression(location)
        self._storage = open_storage(place, application_id, task_id)
        self._chunk_bytes = chunk_bytes
        self._snapshot_floor_bytes = snapshot_floor_bytes
        self._last: str | None = None
        self._weight: _Weight | None = None

    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        """Write one delta and make it durable."""
        data = write_delta(changes, previous, checked_version(version), commit, compress=self._compress)
        name = f"{version}.{'-' if previous is None else checked_version(previous)}.{len(data)}.delta"
        try:
            self._storage.write(name, [data])
        except OSError as error:
            raise self._storage.explain(f"write delta {name}", error) from error
        if self._weight is not None:  # orphans count too, until `wants_snapshot` lists the files again
            self._weight.deltas += len(data) + _FILE_COST
        self._last = version

    def restore(self, target: str, have: str | None) -> Restore:
        """Plan from `have` if it is an ancestor of `target`, else from the newest snapshot, else from the beginning."""
        self._last, self._weight = target, None
        if have == target:
            return Restore(have, iter(()))
        files = self._list()
        if have is not None:
            route = route_to(target, files.deltas, [have])
            if route.start == have:
                return Restore(have, self._steps(route.deltas, files), sum(delta.size for delta in route.deltas))
        route = self._complete_route(target, files)
        if route.missing is not None:
            raise ChangelogError(self._broken(target, route.missing, files))
        steps = self._steps(route.deltas, files)
        total = sum(delta.size for delta in route.deltas)
        if route.start is None:
            return Restore(None, steps, total)
        older = route_to(target, files.deltas, set(files.snapshots) - {route.start})
        snapshot_steps = self._snapshot_steps(route.start, older.missing is None)
        return Restore(None, chain(snapshot_steps, steps), total + files.snapshots[route.start].size)

    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        """Write the whole state at `version`, about `chunk_bytes` of it in memory at a time."""
        name = snapshot_name(checked_version(version))
        parts = write_snapshot(version, changes, commit, chunk_bytes=self._chunk_bytes, compress=self._compress)
        try:
            self._storage.write(name, parts, may_exist=True)
        except OSError as error:
            raise self._storage.explain(f"write snapshot {name}", error) from error
        self._last, self._weight = version, None

    def wants_snapshot(self) -> bool:
        """Return whether the deltas since the last snapshot weigh more than it, or a file of the chain is lost.

        False until the first `append` or `restore`.
        """
        if self._last is None:
            return False
        if self._weight is not None and not self._weight.outgrown(self._snapshot_floor_bytes):
            return False
        # List the files again before returning True: another process may have written a snapshot.
        self._weight = self._weigh(self._last)
        return self._weight.outgrown(self._snapshot_floor_bytes)

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        """Delete files older than `grace_ms`: temporary ones, and those below `version` that it does not need.

        While the chain to `version` is broken, nothing is deleted and a warning is logged.
        """
        files = self._list()
        route = self._complete_route(version, files)
        if route.missing is not None:
            _log.warning(
                "%s; nothing is cleaned until a snapshot mends it", self._broken(version, route.missing, files)
            )
            return
        needed = {files.names[delta.version] for delta in route.deltas}
        if route.start is not None:
            needed.add(snapshot_name(route.start))
        counter = version_counter(version)
        needless = [
            file.name
            for file in sorted(files.ours, key=lambda file: file.modified_ms)
            if file.modified_ms < now_ms - grace_ms
            and file.name not in needed
            and (file.name.endswith(TEMPORARY) or version_counter(file.name) < counter)
        ]
        if not is_current():
            return
        for name in needless:
            try:
                self._storage.delete(name)
            except OSError as error:
                raise self._storage.explain(f"delete {name}", error) from error

    def destroy(self) -> None:
        """Delete the task's folder."""
        try:
            self._storage.destroy()
        except OSError as error:
            raise self._storage.explain("delete it", error) from error
        self._last = self._weight = None

    def close(self) -> None:
        """Do nothing: nothing stays open between calls."""

    # ------------------------------------------------------------ what was committed

    def proven(self) -> set[str]:
        """Return the versions that are known to have been committed, from one listing."""
        files = self._list()
        return proven(files.deltas.values(), files.snapshots)

    def beginnings(self) -> set[str]:
        """Return the versions that follow None."""
        return {delta.version for delta in self._list().deltas.values() if delta.previous is None}

    def kept(self, version: str) -> Commit | None:
        """Return the latest commit of `version` in its snapshot and the deltas after it; damaged files are left out."""
        files = self._list()
        holders = [
            (files.names[each.version], DELTA, each) for each in files.deltas.values() if each.previous == version
        ]
        if version in files.deltas and files.deltas[version].previous is None:
            holders.append((files.names[version], DELTA, files.deltas[version]))
        if version in files.snapshots:
            holders.append((snapshot_name(version), SNAPSHOT, Delta(version, None, 0)))
        found = [commit for holder in holders if (commit := self._kept_in(*holder)) is not None]
        return latest_of(found, version)

    def _kept_in(self, name: str, kind: bytes, delta: Delta) -> Commit | None:
        try:
            with self._storage.open(name) as file:
                return Reader(file, kind, delta.version, delta.previous).commit
        except (DamagedError, FileNotFoundError):
            return None
        except OSError as error:
            raise self._storage.explain(f"read {name}", error) from error

    # ------------------------------------------------------------ looking

    def _list(self) -> Listing:
        try:
            return Listing.of(self._storage.files())
        except OSError as error:
            raise self._storage.explain("list its files", error) from error

    def _complete_route(self, target: str, files: Listing) -> Route:
        """Return the route from the newest snapshot that is whole, or from the beginning."""
        snapshots = set(files.snapshots)
        while True:
            route = route_to(target, files.deltas, snapshots)
            if route.start is None or (reason := self._damage(route.start)) is None:
                if files.unusable and route.missing is None:
                    _log.warning(
                        "changelog at %s: going by older files, because a newer one is damaged: %s",
                        self._storage.location, ", ".join(files.unusable),
                    )  # fmt: skip
                return route
            files.unusable.append(f"{snapshot_name(route.start)} ({reason})")
            snapshots.discard(route.start)

    def _damage(self, snapshot: str) -> str | None:
        try:
            check_tail(self._storage.tail(snapshot_name(snapshot), TAIL_BYTES))
        except (DamagedError, FileNotFoundError) as error:
            return str(error)
        except OSError as error:
            raise self._storage.explain(f"read {snapshot_name(snapshot)}", error) from error
        return None

    def _weigh(self, version: str) -> _Weight:
        files = self._list()
        route = self._complete_route(version, files)
        return _Weight(
            deltas=sum(delta.size + _FILE_COST for delta in route.deltas),
            snapshot=0 if route.start is None else files.snapshots[route.start].size,
            broken=route.missing is not None,
        )

    def _broken(self, target: str, missing: str, files: Listing) -> str:
        lost = [*files.unusable, files.damaged.get(missing) or f"{missing}.*.delta (missing)"]
        return (
            f"changelog at {self._storage.location}: no way to version {target}, because files are lost or damaged: "
            f"{', '.join(lost)}. {_WAYS_OUT}"
        )

    # ------------------------------------------------------------ reading

    def _steps(self, deltas: list[Delta], files: Listing) -> Iterator[tuple[Changes, str]]:
        """Yield deltas; runs of small ones as one step, because a write to a store costs more than what is in them."""
        reads = self._read_deltas(deltas, files)
        for group in _groups(deltas, self._chunk_bytes):
            yield _merged([next(reads) for _ in group]), group[-1].version

    def _read_deltas(self, deltas: list[Delta], files: Listing) -> Iterator[Changes]:
        """Yield what each delta holds; from a place with slow answers, several are asked for at once."""
        if len(deltas) == 1 or self._storage.parallel_reads == 1:
            for delta in deltas:
                yield self._read_delta(delta, files)
            return
        left = deque(deltas)
        reading: deque[tuple[Delta, Future[Changes]]] = deque()
        with ThreadPoolExecutor(self._storage.parallel_reads, "changelog-read") as pool:
            try:
                while left or reading:
                    while left and len(reading) < self._storage.parallel_reads:
                        if reading and sum(delta.size for delta, _ in reading) + left[0].size > _READ_AHEAD_BYTES:
                            break
                        reading.append((left[0], pool.submit(self._read_delta, left.popleft(), files)))
                    yield reading.popleft()[1].result()
            finally:
                for _, unread in reading:
                    unread.cancel()

    def _read_delta(self, delta: Delta, files: Listing) -> Changes:
        changes: dict[str, list[Change]] = {}
        name = files.names[delta.version]
        for store, rows in self._chunks(name, DELTA, delta.version, delta.previous, _WAYS_OUT):
            if store in changes:
                changes[store] += rows
            else:
                changes[store] = rows
        return changes

    def _snapshot_steps(self, version: str, older_files_do: bool) -> Iterator[tuple[Changes, str]]:
        name = snapshot_name(version)
        way_out = f"Move {name} away, and restoring goes by the files before it" if older_files_do else _WAYS_OUT
        chunk: Changes = {}
        for number, (store, rows) in enumerate(self._chunks(name, SNAPSHOT, version, None, way_out)):
            if number:
                yield chunk, f"restoring:{version}:{number}"
            chunk = {store: rows}
        # The last step: the file has turned out to be complete.
        yield chunk, version

    def _chunks(
        self, name: str, kind: bytes, version: str, previous: str | None, way_out: str
    ) -> Iterator[tuple[str, list[Change]]]:
        try:
            with self._storage.open(name) as file:
                yield from Reader(file, kind, version, previous).chunks()
        except DamagedError as error:
            raise ChangelogError(
                f"changelog at {self._storage.location}: {name} is damaged: {error}. {way_out}"
            ) from error
        except FileNotFoundError as error:
            raise ChangelogError(
                f"changelog at {self._storage.location}: {name} was deleted while it was needed "
                f"(did another process clean up while this one was paused?): start again. {_WAYS_OUT}"
            ) from error
        except OSError as error:
            raise self._storage.explain(f"read {name}", error) from error


_WAYS_OUT = (
    "Bring the file back from a backup or from the store's older object versions, or start on a host that still has a "
    "local copy of the state at that version; to give up the state, use a new application id, or `penstock reset`"
)


def _groups(deltas: list[Delta], chunk_bytes: int) -> Iterator[list[Delta]]:
    group: list[Delta] = []
    size = 0
    for delta in deltas:
        if group and size + delta.size > chunk_bytes:
            yield group
            group, size = [], 0
        group.append(delta)
        size += delta.size
    if group:
        yield group


def _merged(group: list[Changes]) -> Changes:
    if len(group) == 1:
        return group[0]
    merged: dict[str, dict[bytes, bytes | None]] = {}
    for changes in group:
        for store, rows in changes.items():
            merged.setdefault(store, {}).update(rows)
    return {store: sorted(latest.items()) for store, latest in merged.items()}


@dataclass
class _Weight:
    """What the deltas since the last snapshot weigh, and the snapshot, in bytes."""

    deltas: int
    snapshot: int
    broken: bool

    def outgrown(self, floor: int) -> bool:
        return self.broken or self.deltas > max(floor, self.snapshot)


_COMPRESSIONS: Mapping[str, bool] = {"none": False, "zlib": True}
_COMPRESSION = re.compile(r"([?&])compression=(\w*)(&|$)")


def _compression(location: str) -> tuple[str, bool]:
    """Return the location without its `compression` option, and whether to compress."""
    option = _COMPRESSION.search(location)
    if option is None:
        return location, False
    if option[2] not in _COMPRESSIONS:
        raise ChangelogError(
            f"changelog location: expected compression={' or '.join(_COMPRESSIONS)}, found {option[2]!r}"
        )
    rest = option[1] if option[3] else ""
    return location[: option.start()] + rest + location[option.end() :], _COMPRESSIONS[option[2]]
