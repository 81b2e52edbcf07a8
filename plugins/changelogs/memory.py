"""The `memory` changelog, for tests and the test driver: it is lost at the end of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from penstock import RESTORING, ChangelogError, Commit, DeltaChangelog, Restore, version_counter
from penstock.store import Change, Changes

from .chain import Delta, latest_of, route_to

_FLOOR = 1024
_CHUNK = 256


@dataclass
class _History:
    """The content of one task's changelog."""

    deltas: dict[str, Delta] = field(default_factory=dict)
    changes: dict[str, dict[str, list[Change]]] = field(default_factory=dict)
    snapshots: dict[str, list[tuple[str, bytes, bytes]]] = field(default_factory=dict)
    commits: dict[tuple[str, str], Commit | None] = field(default_factory=dict)
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    """When `clean` first saw a delta or a snapshot, by its argument `now_ms`."""

    def clear(self) -> None:
        self.deltas.clear()
        self.changes.clear()
        self.snapshots.clear()
        self.commits.clear()
        self.seen.clear()


_histories: dict[tuple[str, str, str], _History] = {}


class MemoryChangelog(DeltaChangelog):
    """A task's changelog in this process; objects with the same location, application id and task id share it.

    It follows the rules of a durable one, `clean` included, so a test with it shows how a durable one behaves.
    """

    def __init__(self, location: str, application_id: str, task_id: str) -> None:
        self._name = f"changelog memory:{location} of {application_id} task {task_id}"
        self._history = _histories.setdefault((location, application_id, task_id), _History())
        self._last: str | None = None

    @staticmethod
    def forget(location: str) -> None:
        """Drop everything kept at `location`."""
        for place in [place for place in _histories if place[0] == location]:
            del _histories[place]

    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        kept = {store: list(rows) for store, rows in changes.items() if rows}
        size = sum(len(key) + len(value or b"") for rows in kept.values() for key, value in rows)
        self._history.changes[version] = kept
        self._history.deltas[version] = Delta(version, previous, size)
        self._history.commits["delta", version] = commit
        self._last = version

    def restore(self, target: str, have: str | None) -> Restore:
        """Plan from `have` if it is an ancestor of `target`, else from the newest snapshot, else from the beginning."""
        self._last = target
        if have == target:
            return Restore(have, iter(()))
        history = self._history
        if have is not None:
            route = route_to(target, history.deltas.get, [have])
            if route.start == have:
                return Restore(have, self._steps(route.deltas))
        route = route_to(target, history.deltas.get, history.snapshots)
        if route.missing is not None:
            raise ChangelogError(
                f"{self._name}: no way to version {target}: missing: the delta {route.missing}; "
                "a changelog in memory ends with its process: use a 'directory' changelog where state must survive it"
            )
        steps = self._steps(route.deltas)
        return Restore(None, steps if route.start is None else chain(self._snapshot_steps(route.start), steps))

    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        self._history.snapshots[version] = list(changes)
        self._history.commits["snapshot", version] = commit
        self._last = max(self._last or version, version, key=version_counter)  # deltas may have been appended since

    def proven(self) -> set[str]:
        deltas = self._history.deltas
        followed = {delta.previous for delta in deltas.values() if delta.previous is not None}
        return (followed & deltas.keys()) | set(self._history.snapshots)

    def beginnings(self) -> set[str]:
        return {delta.version for delta in self._history.deltas.values() if delta.previous is None}

    def kept(self, version: str) -> Commit | None:
        return latest_of((commit for commit in self._history.commits.values() if commit is not None), version)

    def wants_snapshot(self) -> bool:
        if self._last is None:
            return False
        route = route_to(self._last, self._history.deltas.get, self._history.snapshots)
        size = 0 if route.start is None else self._snapshot_size(route.start)
        return route.missing is not None or sum(delta.size for delta in route.deltas) > max(_FLOOR, size)

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        """Delete what is below `version` and not needed by it, `grace_ms` after `clean` first saw it."""
        history = self._history
        route = route_to(version, history.deltas.get, history.snapshots)
        if route.missing is not None:
            return
        needed = {("delta", delta.version) for delta in route.deltas} | {("snapshot", route.start)}
        found = [("delta", each) for each in list(history.deltas)] + [
            ("snapshot", snapshot) for snapshot in history.snapshots
        ]
        own = version_counter(version)
        needless = [
            each
            for each in found
            if now_ms - history.seen.setdefault(each, now_ms) > grace_ms
            and each not in needed
            and version_counter(each[1]) < own
        ]
        if not is_current():
            return
        for kind, each in needless:
            if kind == "delta":
                history.deltas.pop(each, None)
                history.changes.pop(each, None)
            else:
                history.snapshots.pop(each, None)
            history.seen.pop((kind, each), None)
            history.commits.pop((kind, each), None)

    def destroy(self) -> None:
        """Delete everything, also for other objects that share it."""
        self._history.clear()
        self._last = None

    def close(self) -> None:
        """Do nothing: deltas stay for the next object."""

    def _snapshot_size(self, version: str) -> int:
        return sum(len(key) + len(value) for _, key, value in self._history.snapshots[version])

    def _steps(self, deltas: list[Delta]) -> Iterator[tuple[Changes, str]]:
        for delta in deltas:
            yield {store: list(rows) for store, rows in self._history.changes[delta.version].items()}, delta.version

    def _snapshot_steps(self, version: str) -> Iterator[tuple[Changes, str]]:
        entries = self._history.snapshots[version]
        for start in range(0, len(entries) or 1, _CHUNK):
            rows: dict[str, list[Change]] = {}
            for store, key, value in entries[start : start + _CHUNK]:
                rows.setdefault(store, []).append((key, value))
            end = start + _CHUNK
            yield rows, version if end >= len(entries) else f"{RESTORING}{version}:{end}"
