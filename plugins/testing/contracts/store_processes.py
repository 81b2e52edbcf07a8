"""The tests of a store backend that need a second process: its readers, and writers that are killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import StoreBackend, StoreBackendFactory, StoreError
from penstock.store import Changes

from .child import CleanChildren, answer

STORES = ("first", "second")

_MOST_KILLS = 40
"""In how many places of one `write` it is killed. Of more places the last half are tried, and some of the others."""

_ROWS = 4

Content = Mapping[str, Mapping[bytes, bytes]]


class StoreProcesses:
    """The part of a backend's contract that concerns several processes.

    They are started by a process that has never used the backend, so `open` has to be importable.
    """

    open: StoreBackendFactory
    """The backend: its class or function, as a `staticmethod`. Other processes import it."""
    in_one_process: ClassVar[bool] = False
    """Whether the state ends with the process; tests that need a second process are then skipped."""

    def test_a_reader_in_another_process(self, tmp_path: Path) -> None:
        """Each read sees the whole last commit; writing is refused."""
        self._needs_processes()
        opener = type(self).open
        with (
            CleanChildren([module_of(opener)]) as children,
            children.started(read_on, opener, tmp_path) as connection,
            closing(opener(tmp_path, STORES)) as backend,
        ):
            for number in range(5):
                value = b"%d" % number
                filling = [(b"x%04d" % row, value) for row in range(300)]
                backend.write(
                    {"first": [(b"n", value), *filling], "second": [(value, value)]},
                    f"v{number - 1}" if number else None,
                    f"v{number}",
                )
                connection.send("read")
                version, got, content = answer(connection)
                rule = f"a reader in another process sees the last commit, v{number}, and all of it"
                assert (version, got) == (f"v{number}", value), f"{rule}: found version {version!r}, value {got!r}"
                assert content["first"] == dict([(b"n", value), *filling]), f"{rule}: other rows in store 'first'"
                assert set(content["second"]) == {b"%d" % each for each in range(number + 1)}, (
                    f"{rule}: found keys {sorted(content['second'])} in store 'second'"
                )
            for number in range(5, 8):
                backend.write({"first": [(b"n", b"%d" % number)]}, f"v{number - 1}", f"v{number}")
                connection.send("get")
                got = answer(connection)
                assert got == b"%d" % number, f"get of a reader returned {got!r}, the last commit has {number}"
            connection.send("write")
            refused = answer(connection)
            assert refused == "StoreError", f"write of a read_only backend must raise StoreError: {refused}"
            backend.write({"first": [(b"n", b"last")]}, "v7", "v8")
            connection.send("end")
            assert answer(connection) == "ended"

    def test_a_process_killed_inside_write(self, tmp_path: Path) -> None:
        """Wherever it is killed, the store has the version before `write` with its rows, or that after it with its.

        Python tells which function is called or returns, those written in C included; there the process kills itself.
        """
        self._needs_processes()
        opener = type(self).open
        version, content = self._filled(tmp_path)
        with CleanChildren([module_of(opener)]) as children:
            number, places = 0, [0]
            while places:
                place, number = places.pop(0), number + 1
                changes, after = _next_changes(content, number)
                following = f"v{number:03d}"
                work = opener, tmp_path, changes, version, following, place
                with children.started(write_until_killed, *work) as connection:
                    try:
                        steps = answer(connection)
                    except EOFError:
                        steps = None
                if place == 0:
                    assert steps is not None, "a write in a process of its own ended that process"
                    places = _places(steps)
                version, content = self._found(tmp_path, place, (version, content), (following, after))

    def _needs_processes(self) -> None:
        if self.in_one_process:
            pytest.skip("this backend has no other processes")

    def _filled(self, directory: Path) -> tuple[str, Content]:
        content: dict[str, dict[bytes, bytes]] = {
            store: {b"%d" % row: b"old" for row in range(_ROWS)} for store in STORES
        }
        with closing(type(self).open(directory, STORES)) as backend:
            backend.write({store: sorted(rows.items()) for store, rows in content.items()}, None, "v000")
        return "v000", content

    def _found(
        self, directory: Path, place: int, before: tuple[str, Content], after: tuple[str, Content]
    ) -> tuple[str, Content]:
        """Return the present content, which must be one of the two."""
        with closing(type(self).open(directory, STORES)) as backend:
            version = backend.version()
            rows = {store: dict(backend.range(store)) for store in STORES}
        where = f"a process was killed at step {place} of write" if place else "a process wrote, and ended"
        rule = "write applies all changes and records the version in one atomic step"
        allowed = (before, after) if place else (after,)
        assert version in [name for name, _ in allowed], f"{where}: found version {version!r}; {rule}"
        [expected] = [content for name, content in allowed if name == version]
        assert rows == expected, f"{where}: at version {version} found {rows}, expected {expected}; {rule}"
        return version, rows


def module_of(opener: Any) -> str:
    """Return the module that a second process imports for a backend."""
    while isinstance(opener, partial):
        opener = opener.func
    return str(opener.__module__)


def _next_changes(content: Content, number: int) -> tuple[Changes, Content]:
    """Return changes that put, replace and delete in both stores, and what is there after them."""
    value = b"value %d" % number
    changes: dict[str, list[tuple[bytes, bytes | None]]] = {}
    after: dict[str, dict[bytes, bytes]] = {}
    for store, rows in content.items():
        moved = {b"%d" % row: None if b"%d" % row in rows and row % 3 == number % 3 else value for row in range(_ROWS)}
        changes[store] = sorted(moved.items())
        after[store] = {key: each for key, each in moved.items() if each is not None}
    return changes, after


def _places(steps: int) -> list[int]:
    """Return the steps of a write at which it is killed, the last ones first."""
    if steps <= _MOST_KILLS:
        return list(range(steps, 0, -1))
    last = _MOST_KILLS // 2
    first = steps - last
    return [*range(steps, first - 1, -1), *range(1, first, -(-first // last))]


# ---------------------------------------------------------------- in the other process


def read_on(connection: Connection, opener: StoreBackendFactory, directory: Path) -> None:
    """Answer questions as a reader."""
    reader: StoreBackend | None = None
    while True:
        question = connection.recv()
        reader = reader or opener(directory, STORES, read_only=True)
        if question == "end":
            reader.close()
            connection.send("ended")
            return
        if question == "get":
            connection.send(reader.get("first", b"n"))
        elif question == "write":
            try:
                reader.write({}, reader.version(), "mine")
            except StoreError as error:
                connection.send(type(error).__name__)
            else:
                connection.send("written")
        else:
            got = reader.get("first", b"n")
            content = {store: dict(reader.range(store)) for store in STORES}
            connection.send((reader.version(), got, content))


def write_on(
    connection: Connection,
    opener: StoreBackendFactory,
    directory: Path,
    plan: Sequence[Changes],
    version: str | None,
    names: Sequence[str],
    closed: bool,
) -> None:
    """Write one change after the other, and send the name of each version."""
    backend = opener(directory, STORES)
    for changes, name in zip(plan, names, strict=True):
        backend.write(changes, version, name)
        version = name
        connection.send(name)
    if closed:
        backend.close()
    connection.send("done")


def write_until_killed(
    connection: Connection,
    opener: StoreBackendFactory,
    directory: Path,
    changes: Changes,
    previous: str,
    version: str,
    place: int,
) -> None:
    """Write, and kill this process at a step of that; send how many steps there are if it is not reached."""
    backend = opener(directory, STORES)
    steps = 0

    def step(*event: object) -> None:
        nonlocal steps
        steps += 1
        if steps == place:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(step)
    try:
        backend.write(changes, previous, version)
    finally:
        sys.setprofile(None)
    connection.send(steps)
