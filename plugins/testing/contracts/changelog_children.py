"""What other processes do in the tests of changelogs: they are killed, find no room, or are stopped in a call.

They import this module, so it imports little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from penstock import Changelog, ChangelogError, Commit, DeltaChangelog, TopicPartition

from .child import Step, act_until_killed, without_room
from .races import Side, act_as

Call = tuple[str, tuple[Any, ...]]
"""A method of a changelog, and its arguments."""


def is_current() -> bool:
    """Say that no other process has the task: what a log answers that was not asked."""
    return True


def change_until_killed(
    connection: Connection,
    opener: Changelog,
    location: str,
    last: str | None,
    calls: Sequence[Call],
    place: Step | None,
) -> None:
    """Open the task as the engine does, make the calls, and kill this process at a step of the last one."""
    log = opener(location, "application", "0_0")
    if last is not None:
        for _ in log.restore(last, None).steps:
            pass
    *before, (method, arguments) = calls
    for name, given in before:
        getattr(log, name)(*given)
    connection.send("ready")
    act_until_killed(connection, lambda: getattr(log, method)(*arguments), place)


def append_without_room(connection: Connection, opener: Changelog, location: str, last: str, large: Any) -> None:
    """Append a delta where files may not grow, then a small one; send what was raised."""
    log = opener(location, "application", "0_0")
    for _ in log.restore(last, None).steps:
        pass
    try:
        with without_room():
            log.append(*large)
        outcome = "appended"
    except ChangelogError as error:
        outcome = f"ChangelogError: {error}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    connection.send(outcome)
    log.append(*connection.recv())
    connection.send("appended")


def act_when_told(connection: Connection, opener: Changelog, location: str, call: str) -> None:
    """Act as a side of races until the connection ends."""
    act_as(connection, ChangelogSide(opener, location, {}), call, ChangelogError)


def task_of(number: int) -> str:
    """Return the task of a race."""
    return f"0_{number}"


class ChangelogSide(Side):
    """A side of races on a changelog; sides with the same `objects` share an object."""

    def __init__(self, opener: Changelog, location: str, objects: dict[int, DeltaChangelog]) -> None:
        self._opener = opener
        self._location = location
        self._objects = objects
        self.afterwards = lambda: None

    def begin(self, name: str, number: int) -> None:
        """Open the changelog of another task; the first side writes three versions, and the second restores them."""
        for earlier in self._objects.keys() - {number}:
            self._objects.pop(earlier).close()
        self._name = name
        if number not in self._objects:
            self._objects[number] = self._opener(self._location, "application", task_of(number))
        self._log = self._objects[number]
        if name == "one":
            for at in range(3):
                previous = f"{at - 1}-v" if at else None
                self._log.append({"s": [(b"%d" % at, b"v")]}, previous, f"{at}-v", self._commit(previous or "0-v", at))
        else:
            self._restored()

    def end(self) -> None:
        """Close what is open."""
        while self._objects:
            self._objects.popitem()[1].close()

    def _commit(self, version: str, position: int) -> Commit:
        return Commit({TopicPartition("in", 0): position}, version, b"state")

    def _restored(self) -> dict[bytes, bytes | None]:
        rows: dict[bytes, bytes | None] = {}
        for changes, _ in self._log.restore("2-v", None).steps:
            rows.update(changes.get("s", ()))
        return rows

    def appends(self) -> Callable[[], object]:
        """Append a delta after the last version."""
        changes = {"s": [(self._name.encode(), b"appended")]}
        return lambda: self._log.append(changes, "2-v", f"3-{self._name}", self._commit("2-v", 3))

    def snapshots(self) -> Callable[[], object]:
        """Write a snapshot of the last version."""
        rows = [("s", b"%d" % at, b"v") for at in range(3)]
        return lambda: self._log.snapshot("2-v", iter(rows), self._commit("2-v", 3))

    def cleans(self) -> Callable[[], object]:
        """Clean when nothing is older than the grace period."""
        now_ms = int(time.time() * 1000)
        return lambda: self._log.clean("2-v", 1 << 30, now_ms, is_current)

    def restores(self) -> Callable[[], object]:
        """Restore the last version."""
        return self._restored

    def proves(self) -> Callable[[], object]:
        """Look for what was committed."""
        return lambda: sorted(self._log.proven() - {"2-v"})

    def destroys(self) -> Callable[[], object]:
        """Delete everything."""
        return self._log.destroy
