"""Segments: the deltas in the files of one listing, found by reading the files."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

from penstock import Commit, version_counter

from .chain import Delta, Route, route_to
from .file_format import DELTA, OPENING_BYTES, DamagedError, Reader
from .listing import DELTA_END, Listing, is_version
from .storage import Storage


class _Damage(NamedTuple):
    """The damage in a file, and the counter of the last delta before it. Deltas behind it cannot be read."""

    description: str
    after: int


def further(storage: Storage, reached: Delta, target: str) -> Delta | None:
    """Return the deltas up to `target` that directly follow `reached` in its file; None if they are not all there.

    It reads no more than these, so a copy that follows a task costs what the task writes.
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
        """Return the way from `have` to `target`; None if `have` is not before it in the chain."""
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
            (version_counter(each.version), each)
            for each in self.files.deltas.values()
            if self._storage.can_append or each.file in self.files.continued
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
        """Return a description of each file on a route that is damaged behind what the route needs of it."""
        files = dict.fromkeys(each.file for each in route.deltas)
        return [self._damages[each].description for each in files if each in self._damages]

    def lost(self, missing: str) -> list[str]:
        """Return a description of each file in which a version may have been that `route` has not found."""
        if missing in self.files.damaged:
            return [self.files.damaged[missing]]
        counter = version_counter(missing) if is_version(missing) else -1
        first = self.files.deltas.get(missing)
        names = [first.file] if first is not None else [each.file for each in self._longer_below(counter)]
        damages = [self._damages[each] for each in names if each in self._damages]
        found = [each.description for each in damages if each.after < counter]
        if first is None:
            found += [reason for each, reason in self.files.damaged.items() if version_counter(each) < counter]
        return found or [f"the file with the delta of {missing} (missing)"]

    # ------------------------------------------------------------ all versions

    def followed(self) -> set[str]:
        """Return the versions that a delta follows and that are there, or may have been where a file is damaged."""
        files = self.files
        there = {*files.deltas, *files.damaged, *files.snapshots}
        found = {each.previous for each in files.deltas.values()}
        for _, each in self._longer:
            for reader in self._readers(each.file):
                found.add(reader.previous)
                there.add(reader.version)
        lost = min((each.after for each in self._damages.values()), default=sys.maxsize)
        return {each for each in found if each is not None and (each in there or version_counter(each) > lost)}

    def commits_of(self, version: str) -> Iterator[Commit]:
        """Yield the commits of a version that deltas keep; damaged ones are left out."""
        names = {each.file for each in self.files.deltas.values() if version in (each.previous, each.version)}
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
        return all(each.version == version or version_counter(each.version) < counter for each in self._readers(name))
