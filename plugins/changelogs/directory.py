"""The `directory` changelog: files of deltas and snapshots, on a disk or in any object store pyarrow.fs knows."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from statistics import median

from penstock import ChangelogError, Commit, DeltaChangelog, Restore, Work, version_counter
from penstock.store import Changes

from .chain import Delta, Route, latest_of
from .file_format import SNAPSHOT, TAIL_BYTES, DamagedError, Reader, check_tail, write_delta, write_snapshot
from .segments import Listing, Segments, Steps, checked_version, delta_name, further, is_left_over, snapshot_name
from .storage import TEMPORARY, Storage, absolute, open_storage

_log = logging.getLogger(__name__)

_FILE_COST, _DELTA_COST = 4096, 1024
"""Bytes that a file and a delta count beside their own, when deltas are weighed against a snapshot: a disk's block or a
store's request, and the work of reading it."""
_UPLOADS, _UPLOAD_BYTES = 5, 1024
"""How `least_commit_interval` measures: number and size of the files."""
_MOST_INTERVAL = 10.0
"""A process that is frozen while it measures finds a place slower than it is."""


class DirectoryChangelog(DeltaChangelog):
    """A task's changelog in the folder LOCATION/APPLICATION ID/TASK ID.

    LOCATION is a path on this host (written with fsync), or a URL that `pyarrow.fs.FileSystem.from_uri` knows (s3://,
    gs://, hdfs://, abfs://; file:// is a path). `?compression=zlib` at its end makes files a third to a half as large
    and writing them several times slower; both kinds can be read in either case. The sizes below can be given there,
    too: `?compression=zlib&segment_bytes=1000000`.

    A delta makes the file `VERSION.PREVIOUS.BYTES.delta` (PREVIOUS is `-` for the first version). On a disk, further
    deltas that this object writes are appended to it, up to about `segment_bytes` or a snapshot; elsewhere each has a
    file of its own. A snapshot is `VERSION.snapshot`; a file being written ends in `.tmp`. `file_format` describes
    their content, docs/decisions/state.md the reasons.

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
        segment_bytes: int = 16 * 1024 * 1024,
        open_storage: Callable[..., Storage] = open_storage,
    ) -> None:
        """Open without reading or writing. Deltas of less than `snapshot_floor_bytes` in all need no snapshot."""
        place, given = location_and_options(location)
        self._compress = given.get("compression") == "zlib"
        self._open_storage = partial(open_storage, absolute(place), application_id, task_id)
        self._chunk_bytes = int(given.get("chunk_bytes", chunk_bytes))
        self._segment_bytes = int(given.get("segment_bytes", segment_bytes))
        self._segment: _Segment | None = None
        self._ends: dict[str, str] = {}
        """By file that this process appends to: the last version in it, unless it was cleaned."""
        self._writing = threading.Lock()
        """Held while a delta is written, so that `clean` does not delete the file."""
        self._snapshot_floor_bytes = int(given.get("snapshot_floor_bytes", snapshot_floor_bytes))
        self._last: str | None = None
        self._reached: dict[str, Delta] = {}
        """Beside a writer: where in their files the deltas end that led to the last two targets of `restore`."""
        self._weight: _Weight | None = None

    @cached_property
    def _storage(self) -> Storage:
        return self._open_storage(world=self.world)

    @property
    def _steps(self) -> Steps:
        return Steps(self._storage, self._chunk_bytes)

    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        data = write_delta(changes, previous, checked_version(version), commit, compress=self._compress)
        with self._writing:
            cost = self._write_delta(data, previous, version)
            if self._weight is not None:  # orphans count too, until `wants_snapshot` lists the files again
                self._weight.deltas += len(data) + cost
            self._last = version

    def _write_delta(self, data: bytes, previous: str | None, version: str) -> int:
        """Append a delta to the segment, or to a new one; return its overhead in bytes."""
        segment = self._segment
        # After an error the file may end in a part of the delta: nothing may be written behind it.
        self._segment = None
        if segment is not None and segment.version == previous and segment.size < self._segment_bytes:
            name, cost = segment.name, _DELTA_COST
            with self._storage.explaining(f"append delta {version} to {name}"):
                self._storage.append(name, segment.size, data)
            segment.size += len(data)
            segment.version = version
        else:
            name, cost = delta_name(version, previous, len(data)), _FILE_COST + _DELTA_COST
            with self._storage.explaining(f"write delta {name}"):
                self._storage.write(name, [data])
            segment = _Segment(name, len(data), version) if self._storage.can_append else None
        self._segment = segment
        if segment is not None:
            self._ends[name] = version
        return cost

    def restore(self, target: str, have: str | None) -> Restore:
        """Plan from `have` if it is an ancestor of `target`, else from the newest snapshot, else from the beginning."""
        self._last, self._weight = target, None
        if have == target:
            return Restore(have, iter(()))
        reached = self._reached.get(have or "")
        if reached is not None and (found := further(self._storage, reached, target)) is not None:
            self._reached = {reached.version: reached, target: found}
            work = Work(found.size)
            return Restore(have, self._steps.of_deltas([found], work), work)
        segments = self._look()
        route = None if have is None else segments.route_from(have, target)
        if route is None:
            route = self._complete_route(target, segments)
        if route.missing is not None:
            raise ChangelogError(self._broken(target, route.missing, segments))
        if self.beside_writer and self._storage.can_append and route.deltas:
            self._reached = {target: route.deltas[-1]}
        for torn in () if self.beside_writer else segments.torn(route):
            _log.warning(
                "%s: %s; version %s needs nothing behind that",
                self._storage.named, torn, target,
            )  # fmt: skip
        work = Work(sum(delta.size for delta in route.deltas))
        steps = self._steps.of_deltas(route.deltas, work)
        if route.start is None or route.start == have:
            return Restore(route.start, steps, work)
        start, snapshots = route.start, segments.files.snapshots

        def way_out() -> str:
            older = segments.route(target, set(snapshots) - {start})
            if older.missing is None:
                return f"Move {snapshot_name(start)} away, and restoring goes by the files before it"
            return self._storage.ways_out

        work.total += snapshots[start].size
        return Restore(None, chain(self._steps.of_snapshot(start, way_out, work), steps), work)

    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        """Write the whole state at `version`, about `chunk_bytes` of it in memory at a time."""
        name = snapshot_name(checked_version(version))
        parts = write_snapshot(version, changes, commit, chunk_bytes=self._chunk_bytes, compress=self._compress)
        with self._storage.explaining(f"write snapshot {name}"):
            self._storage.write(name, parts, may_exist=True)
        with self._writing:
            self._weight = self._segment = None
            # Deltas may have been appended since.
            if self._last is None or version_counter(self._last) < version_counter(version):
                self._last = version

    def wants_snapshot(self) -> bool:
        """Return whether the deltas since the last snapshot weigh more than it, or a file of the chain is lost.

        False until the first `append` or `restore`.
        """
        last, weight = self._last, self._weight
        if last is None or (weight is not None and not weight.outgrown(self._snapshot_floor_bytes)):
            return False
        # List the files again before returning True: another process may have written a snapshot.
        weight = self._weight = self._weigh(last)
        return weight.outgrown(self._snapshot_floor_bytes)

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        """Delete files older than `grace_ms`: temporary ones, and those below `version` that it does not need.

        While the chain to `version` is broken, nothing is deleted and a warning is logged.
        """
        with self._writing:
            self._segment = None  # a delta that is written from now on has a file of its own
            self._ends = {
                name: end for name, end in self._ends.items() if version_counter(end) > version_counter(version)
            }
            needed = set(self._ends)  # a file that is damaged does not show its later deltas
        segments = self._look()
        route = self._complete_route(version, segments)
        if route.missing is not None:
            if is_current():  # else a successor has deleted what this process does not need any more
                _log.warning(
                    "%s; nothing is cleaned until a snapshot mends it", self._broken(version, route.missing, segments)
                )
            return
        needed |= _files_of(route)
        needless = [
            file.name
            for file in sorted(segments.files.ours, key=lambda file: file.modified_ms)
            if file.modified_ms < now_ms - grace_ms
            and file.name not in needed
            and (is_left_over(file.name, version) or segments.ends_by(version, file.name))
        ]
        if not is_current():
            return
        self.delete(needless)

    def needless(self, versions: Collection[str], before_ms: int) -> set[str]:
        """Return the names of files, not written since `before_ms`, which are needed for none of these versions.

        Raises ChangelogError if there is no way to one of them.
        """
        segments = self._look()
        old = {each.name for each in segments.files.ours if each.modified_ms < before_ms}
        return old.difference(*(self._needed(version, segments) for version in versions))

    def needed(self, version: str) -> set[str]:
        """Return the names of the files of the way to a version. Raises ChangelogError if there is none."""
        return self._needed(version, self._look())

    def _needed(self, version: str, segments: Segments) -> set[str]:
        route = self._complete_route(version, segments)
        if route.missing is not None:
            raise ChangelogError(self._broken(version, route.missing, segments))
        return _files_of(route)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""
        for name in names:
            with self._storage.explaining(f"delete {name}"):
                self._storage.delete(name)

    def sync(self) -> None:
        with self._storage.explaining("sync it"):
            self._storage.sync()

    def destroy(self) -> None:
        with self._storage.explaining("delete it"):
            self._storage.destroy()
        self._last = self._weight = self._segment = None

    def close(self) -> None:
        """Do nothing: nothing stays open between calls."""

    # ------------------------------------------------------------ how fast

    def least_commit_interval(self) -> float:
        """Return the time of two uploads, ten seconds at most, or 0.0 where deltas are appended.

        Writes a few small files to measure it, and deletes them.
        """
        if self._storage.can_append:
            return 0.0
        return min(_MOST_INTERVAL, 2 * median(self._upload_seconds() for _ in range(_UPLOADS)))

    def _upload_seconds(self) -> float:
        name = f"upload.{self.world.token(4)}{TEMPORARY}"
        with self._storage.explaining(f"write {name}"):
            began = self.world.seconds()
            self._storage.write(name, [bytes.fromhex(self.world.token(_UPLOAD_BYTES))])
            took = self.world.seconds() - began
            self._storage.delete(name)
        return took

    # ------------------------------------------------------------ what was committed

    def proven(self) -> set[str]:
        segments = self._look()
        return segments.followed() | set(segments.files.snapshots)

    def beginnings(self) -> set[str]:
        return {delta.version for delta in self._look().files.deltas.values() if delta.previous is None}

    def kept(self, version: str) -> Commit | None:
        """Return the latest commit of `version` in its snapshot and the deltas after it; damaged files are left out."""
        segments = self._look()
        commits = list(segments.commits_of(version))
        if version in segments.files.snapshots and (commit := self._kept_in_snapshot(version)) is not None:
            commits.append(commit)
        return latest_of(commits, version)

    def _kept_in_snapshot(self, version: str) -> Commit | None:
        name = snapshot_name(version)
        with self._storage.explaining(f"read {name}"):
            try:
                with self._storage.open(name) as file:
                    return Reader(file, SNAPSHOT).commit
            except (DamagedError, FileNotFoundError):
                return None

    # ------------------------------------------------------------ looking

    def _look(self) -> Segments:
        with self._storage.explaining("list its files"):
            return Segments(self._storage, Listing.of(self._storage.files()))

    def _complete_route(self, target: str, segments: Segments) -> Route:
        """Return the route from the newest snapshot that is whole, or from the beginning."""
        unusable = segments.files.unusable
        snapshots = set(segments.files.snapshots)
        while True:
            route = segments.route(target, snapshots)
            if route.start is None or (reason := self._damage(route.start)) is None:
                if unusable and route.missing is None:
                    _log.warning(
                        "%s: going by older files, because a newer one is damaged: %s",
                        self._storage.named, ", ".join(unusable),
                    )  # fmt: skip
                return route
            unusable.append(f"{snapshot_name(route.start)} ({reason})")
            snapshots.discard(route.start)

    def _damage(self, snapshot: str) -> str | None:
        name = snapshot_name(snapshot)
        with self._storage.explaining(f"read {name}"):
            try:
                check_tail(self._storage.tail(name, TAIL_BYTES))
            except (DamagedError, FileNotFoundError) as error:
                return str(error)
        return None

    def _weigh(self, version: str) -> _Weight:
        segments = self._look()
        route = self._complete_route(version, segments)
        return _Weight(
            deltas=sum(delta.size + delta.length * _DELTA_COST + _FILE_COST for delta in route.deltas),
            snapshot=0 if route.start is None else segments.files.snapshots[route.start].size,
            broken=route.missing is not None,
        )

    def _broken(self, target: str, missing: str, segments: Segments) -> str:
        lost = [*segments.files.unusable, *segments.lost(missing)]
        return (
            f"{self._storage.named}: no way to version {target}, because files are lost or damaged: "
            f"{', '.join(lost)}. {self._storage.ways_out}"
        )


def _files_of(route: Route) -> set[str]:
    """Return the names of the files of a way to a version."""
    files = {delta.file for delta in route.deltas}
    return files if route.start is None else files | {snapshot_name(route.start)}


@dataclass
class _Segment:
    """The file that this object appends to, and the version that its last delta leads to."""

    name: str
    size: int
    version: str


@dataclass
class _Weight:
    """The weights of the deltas since the last snapshot, and of the snapshot, in bytes."""

    deltas: int
    snapshot: int
    broken: bool

    def outgrown(self, floor: int) -> bool:
        return self.broken or self.deltas > max(floor, self.snapshot)


_SIZE = "a number of bytes, 1 or more"
_OPTIONS = {
    "compression": ("none or zlib", "none|zlib"),
    "chunk_bytes": (_SIZE, "[1-9][0-9]*"),
    "segment_bytes": (_SIZE, "[1-9][0-9]*"),
    "snapshot_floor_bytes": (_SIZE, "[1-9][0-9]*"),
}
"""By option: a description of its values, and their pattern."""


def location_and_options(location: str) -> tuple[str, dict[str, str]]:
    """Return the location without options of this changelog, and these options; others belong to pyarrow."""
    place, mark, query = location.rpartition("?")
    pairs = [each.partition("=") for each in query.split("&")] if mark else []
    given = {name: value for name, _, value in pairs if name in _OPTIONS}
    for name, value in given.items():
        expected, pattern = _OPTIONS[name]
        if not re.fullmatch(pattern, value):
            raise ChangelogError(f"changelog location: expected {name}={expected}, found {value!r}")
    if not given:
        return location, given
    others = "&".join("".join(pair) for pair in pairs if pair[0] not in _OPTIONS)
    return f"{place}?{others}" if others else place, given
