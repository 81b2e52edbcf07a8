"""The settings of `StoreBackendContract`, the work of its other processes, and its part about several writers."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest

from penstock import StaleStoreError, StoreBackend, StoreBackendFactory, StoreError, StoreLockedError
from penstock.store import Changes

from .child import (
    CallStep,
    CleanChildren,
    act_in_steps,
    act_until_killed,
    answer,
    ask,
    children_for,
    orders,
    outcome_of,
    without_room,
)
from .expectations import applied, declared, expect, shown

STORES = ("first", "second")
Content = Mapping[str, Mapping[bytes, bytes]]
Committed = tuple[str | None, Content]
"""The version of a backend, and its rows."""

WRONG: Changes = {"first": [(b"a", b"wrong"), (b"z", b"wrong")], "second": [(b"z", b"wrong")]}
"""Changes that must not be written."""

REFUSALS = (StaleStoreError, StoreLockedError)
"""The errors of a write that is too late."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

NOTHING: Committed = (None, {store: {} for store in STORES})
"""A new directory."""


class StoreTests:
    """The settings of `StoreBackendContract`."""

    open: StoreBackendFactory = declared("the backend's class or function, as a staticmethod")
    """The backend: its class or function, as a `staticmethod`. Other processes import it."""
    in_one_process: ClassVar[bool] = False
    """Whether the state ends with the process; tests that need a second process are then skipped."""

    def children(self) -> CleanChildren:
        """Return a starter of processes that have never used the backend; skip the test if they cannot see its data."""
        if self.in_one_process:
            pytest.skip("this backend has no other processes")
        return children_for(module_of(type(self).open))

    def opened(self, directory: Path, stores: Sequence[str] = STORES) -> closing[StoreBackend]:
        """Open the backend for a `with` block."""
        return closing(type(self).open(directory, stores))

    def check_destroyed(self, directory: Path, after: str, stores: Sequence[str] = STORES) -> None:
        """Open and destroy: check that no file is left, in the directory or beside it."""
        type(self).open(directory, stores).destroy()
        left = sorted(str(file.relative_to(directory)) for file in directory.rglob("*") if not file.is_dir())
        assert not left, f"destroy, after {after}, must delete all files, and left {left[:9]}"


def committed(before: Committed, changes: Changes, version: str) -> Committed:
    """Return the content of a backend after a write."""
    return version, applied(before[1], changes)


def check_reads(backend: StoreBackend, expected: Committed, rule: str) -> None:
    """Compare scans in both directions, some gets and the counts with what was committed."""
    version, content = expected
    expect(backend.version(), version, f"{rule}: version")
    for store, rows in content.items():
        entries = sorted(rows.items())
        expect(list(backend.range(store)), entries, f"{rule}: range of {store!r}")
        expect(list(backend.range(store, reverse=True)), entries[::-1], f"{rule}: reversed range of {store!r}")
        for key, value in entries[:: len(entries) // 50 + 1]:
            expect(backend.get(store, key), value, f"{rule}: get of {key[:40]!r} in {store!r}")
        check_count(backend, store, len(entries), rule)


def check_count(backend: StoreBackend, store: str, rows: int, rule: str) -> None:
    """Check that a count is 0 exactly where a store has no keys."""
    count = backend.approximate_count(store)
    assert type(count) is int, f"approximate_count must return an int, and returned {count!r}"
    assert (count > 0) == (rows > 0) and count >= 0, (
        f"{rule}: approximate_count is 0 only if there are no keys; of {rows} in {store!r} it says {count}"
    )


def check_refused(
    backend: StoreBackend, previous: str | None, why: str = "", changes: Changes = WRONG, version: str = "never"
) -> None:
    """Check that a write after another version than the present one raises StaleStoreError."""
    rule = "a write whose `previous` is not the version raises StaleStoreError and changes nothing"
    try:
        backend.write(changes, previous, version)
    except StaleStoreError:
        return
    except StoreError as error:
        raise AssertionError(f"{rule}; after {shown(previous)} it raised {error!r}; {why}") from error
    raise AssertionError(f"{rule}; after {shown(previous)} it raised nothing; {why}")


def module_of(opener: Any) -> str:
    """Return the module that a second process imports for a backend."""
    while isinstance(opener, partial):
        opener = opener.func
    return str(opener.__module__)


def read_all(backend: StoreBackend, stores: Sequence[str] = STORES) -> tuple[str | None, dict[str, dict[bytes, bytes]]]:
    """Return the version, and the rows that a scan of each store yields."""
    return backend.version(), {store: dict(backend.range(store)) for store in stores}


def write_until_killed(
    connection: Connection,
    opener: StoreBackendFactory,
    directory: Path,
    version: str | None,
    small: tuple[Changes, str] | None,
    large: tuple[Changes, str] | None,
    action: str,
    place: CallStep | None,
) -> None:
    """Write `small`, then act and kill this process at a step of that; send how many steps there are if it survives."""
    if action == "open":
        with TemporaryDirectory() as other, closing(opener(Path(other), STORES)) as warm:
            warm.write({}, None, "v")  # a library that is imported late is not what is to be killed
        act_until_killed(connection, lambda: opener(directory, STORES), place)
        return
    backend: StoreBackend = opener(directory, STORES)
    if small is not None:
        backend.write(small[0], version, small[1])
        version = small[1]
        connection.send("committed")
    act = getattr(backend, action) if large is None else partial(backend.write, large[0], version, large[1])
    act_until_killed(connection, act, place)


def write_when_told(connection: Connection, opener: StoreBackendFactory, directory: Path) -> None:
    """Carry out orders until the connection ends."""
    backend: StoreBackend | None = None
    for order, *given in orders(connection):
        if order == "open":
            if backend is not None:
                backend.close()
            try:
                backend = opener(directory, STORES)
            except StoreLockedError as error:
                connection.send(type(error).__name__)
            else:
                read_all(backend)
                connection.send(backend.version())
            continue
        assert backend is not None, f"the test sent {order!r} before it opened a backend"
        if order in ("close", "destroy"):
            getattr(backend, order)()
            connection.send("done")
        elif order == "write":
            connection.send(_written(backend, *given))
        else:
            *write, place = given
            connection.send(_in_steps(connection, partial(_written, backend, *write), place))


def _written(backend: StoreBackend, *write: Any) -> Any:
    return outcome_of(partial(backend.write, *write), *REFUSALS, done="written")


def write_much(
    connection: Connection, opener: StoreBackendFactory, directory: Path, changes: Changes, most: int
) -> None:
    """Write after "v1", and wait for an order at about `most` steps of that, which a first write has shown."""
    with TemporaryDirectory() as other, closing(opener(Path(other), STORES)) as first:
        first.write({"first": []}, None, "v1")
        steps = list(act_in_steps(lambda: first.write(changes, "v1", "v2"), [], lambda: None).items())
        first.destroy()
    places = [CallStep(*call, times // 2 + 1) for call, times in steps]
    backend = opener(directory, STORES)

    def stop() -> None:
        connection.send("stopped")
        connection.recv()

    act_in_steps(lambda: backend.write(changes, "v1", "v2"), places[:: -(-len(places) // most)], stop)
    backend.close()
    connection.send("written")


def _in_steps(connection: Connection, act: Callable[[], str], place: int) -> tuple[str, int]:
    """Act, and wait for an order at a step of that; return the outcome, and how many steps there were."""
    steps = 0

    def step(*event: object) -> None:
        nonlocal steps
        steps += 1
        if steps == place:
            sys.setprofile(None)
            connection.send("stopped")
            connection.recv()

    sys.setprofile(step)
    try:
        outcome = act()
    finally:
        sys.setprofile(None)
    return outcome, steps


def open_when_told(connection: Connection, opener: StoreBackendFactory, directory: Path) -> None:
    """Open and close a directory, wherever in that it is to stop, until the connection ends."""

    def open_and_close() -> str:
        backend: StoreBackend = opener(directory, STORES)
        read_all(backend)
        backend.close()
        return "opened"

    for place in orders(connection):
        connection.send(_in_steps(connection, lambda: outcome_of(open_and_close, *REFUSALS), place))


def read_when_told(
    connection: Connection, opener: StoreBackendFactory, directory: Path, stores: tuple[str, ...]
) -> None:
    """Carry out orders as a reader of some stores, and send the content, or the error, until the end."""
    reader: StoreBackend | None = None
    view: Any = None
    begun: dict[str, Any] = {}

    def act(order: str) -> object:
        nonlocal reader, view, begun
        reader = reader or opener(directory, stores, read_only=True)
        if order == "begin":
            begun = {store: reader.range(store) for store in stores}
            return {store: [row for row in [next(rows, None)] if row] for store, rows in begun.items()}
        if order == "go on":
            return {store: list(rows) for store, rows in begun.items()}
        if order == "make a view":
            view = reader.view(stores)
            return view is not None
        if order == "look at the view":
            return view.version, {store: dict(view.range(store)) for store in stores}
        if order == "write":
            reader.write({}, reader.version(), "mine")
            return "written"
        if order == "close":
            reader.close()
            return "closed"
        if order == "get":
            return reader.get("first", b"n")
        found = read_all(reader, stores)
        for store in stores if order == "look closely" else ():
            assert (reader.approximate_count(store) > 0) == bool(dict(reader.range(store))), "approximate_count"
            found_there = reader.get(store, b"not there")
            assert found_there is None, f"get of a key that is not there: expected None, found {found_there!r}"
        return found

    for (order,) in orders(connection):
        connection.send(outcome_of(partial(act, order), StaleStoreError, StoreError))
    for each in (view, reader):
        if each is not None:
            each.close()


def open_damaged(connection: Connection, opener: StoreBackendFactory, directory: Path) -> None:
    """Open a directory with damaged files; send the content and whether it is trusted, or the error."""

    def look() -> object:
        with closing(opener(directory, STORES)) as backend:
            return *read_all(backend), backend.trusted()

    connection.send(outcome_of(look, StoreError, with_message=True))


def open_after_crash(connection: Connection, opener: StoreBackendFactory, directory: Path, boot: Path) -> None:
    """As `open_damaged`, when the machine has been started again: it has another boot id."""

    def of_that_boot(opened: Callable[..., Any]) -> Any:
        return lambda file, *given, **named: opened(boot if str(file) == _BOOT_ID else file, *given, **named)

    io.open = builtins.open = of_that_boot(io.open)
    os.open = of_that_boot(os.open)
    open_damaged(connection, opener, directory)


def write_without_room(connection: Connection, opener: StoreBackendFactory, directory: Path) -> None:
    """Write some megabytes where files may not grow; send the outcome, the version and the changes."""
    random = Random(1)
    changes: Changes = {
        "first": [(b"large%03d" % row, random.randbytes(100_000)) for row in range(60)],
        "second": [(b"more", b"more")],
    }
    with closing(opener(directory, STORES)) as backend:
        write = partial(backend.write, changes, "v1", "v2")
        with without_room(directory):
            outcome = outcome_of(write, StaleStoreError, StoreError, done="written")
        connection.send((outcome, backend.version(), changes))
    connection.send("closed")


def write_on(
    connection: Connection,
    opener: StoreBackendFactory,
    directory: Path,
    plan: Sequence[Changes],
    version: str | None,
    names: Sequence[str],
    closed: bool,
) -> None:
    """Write one change after the other, and send the name of each version; in another process."""
    backend = opener(directory, STORES)
    for changes, name in zip(plan, names, strict=True):
        backend.write(changes, version, name)
        version = name
        connection.send(name)
    if closed:
        backend.close()
    connection.send("done")


_RACES = 14
"""Number of places of a write at which another process writes."""
_STOPS = 8
"""Number of places of an opening at which another process opens."""
_PATIENCE = 0.3
"""Seconds that another writer gets to show whether it must wait for the one that was stopped in its write."""
_ZOMBIE = "a write whose `previous` is no longer the version raises StaleStoreError and changes nothing"

_FIRST: Changes = {"first": [(b"a", b"1"), (b"b", b"1")], "second": [(b"a", b"1")]}
_SECOND: Changes = {"first": [(b"a", b"2"), (b"c", b"2")], "second": [(b"a", None)]}


class WriterTests(StoreTests):
    """A replaced process changes nothing, wherever its write falls between its successor's writes."""

    longest_wait: ClassVar[float] = 60
    """Seconds within which `write` must raise StoreLockedError where another process keeps it waiting."""

    def test_a_zombie_at_an_old_version_is_refused(self, tmp_path: Path) -> None:
        """A process that was replaced and then writes after an old version is refused."""
        with self._writer(tmp_path) as zombie:
            now = self._commit(tmp_path, NOTHING, _FIRST, "v1")
            expect(ask(zombie, "open"), "v1", "a process that opens a directory finds the last commit")
            try:
                now = self._commit(tmp_path, now, _SECOND, "v2")
            except StoreLockedError:
                return  # one process at a time has it open
            for previous, version in (("v1", "v2-zombie"), ("v1", "v1"), (None, "v0-zombie")):
                found = ask(zombie, "write", WRONG, previous, version)
                expect(found, "StaleStoreError", f"{_ZOMBIE}; another process had written v2")
                self._check(tmp_path, now, "after a refused write")
            ask(zombie, "close")
            self._check(tmp_path, now, "after a process that was refused has closed")

    @pytest.mark.parametrize("how", ["destroyed", "deleted"])
    def test_a_zombie_of_a_directory_that_was_removed_is_refused(self, tmp_path: Path, how: str) -> None:
        """Its successor has destroyed the stores, or an operator has deleted their files."""
        with self._writer(tmp_path) as zombie:
            self._commit(tmp_path, NOTHING, _FIRST, "v1")
            ask(zombie, "open")
            if how == "deleted":
                for file in tmp_path.iterdir():
                    shutil.rmtree(file) if file.is_dir() else file.unlink()
            else:
                try:
                    type(self).open(tmp_path, STORES).destroy()
                except StoreLockedError:
                    return
            found = ask(zombie, "write", WRONG, "v1", "v2-zombie")
            expect(found, "StaleStoreError", f"{_ZOMBIE}; the stores' files were {how} meanwhile")
            ask(zombie, "close")
        self._check(tmp_path, NOTHING, f"files were {how}, and a process that had them open was refused")

    def test_a_process_stops_while_it_opens(self, tmp_path: Path) -> None:
        """While a process is stopped in opening or closing, others open, or soon raise StoreLockedError."""
        now = self._commit(tmp_path, NOTHING, _FIRST, "v1")
        children = self.children()
        work = open_when_told, type(self).open, tmp_path
        with children.started(*work) as one, children.started(*work) as other:
            for each in (one, other):
                each.send(0)
                outcome, steps = answer(each)
                expect(outcome, "opened", "a process that opens and closes a directory")
            places = range(1, steps + 1, -(-steps // _STOPS))
            waited = [place for place in places if self._stop(one, other, place, _PATIENCE)]
            if waited:
                self._stop(one, other, waited[len(waited) // 2], self.longest_wait)
        self._check(tmp_path, now, "processes were stopped while they opened and closed")

    def _stop(self, one: Connection, other: Connection, place: int, patience: float) -> bool:
        """Stop one process at a step of opening and closing, and let another open; return whether that waited."""
        one.send(place)
        first = answer(one)
        other.send(0)
        waited = not other.poll(patience)
        assert not waited or patience == _PATIENCE, (
            "a process that was stopped while it opened or closed may stop others only for a bounded time: then they "
            f"raise StoreLockedError; after {self.longest_wait:g} s, stopped at step {place}, they had not"
        )
        if first == "stopped":
            one.send("go on")
            first = answer(one)
        for outcome in (first[0], answer(other)[0]):
            assert outcome in ("opened", "StoreLockedError"), (
                f"of two processes one was stopped at step {place} while it opened or closed: {outcome}"
            )
        return waited

    def test_a_zombie_of_a_directory_that_was_rebuilt_is_refused(self, tmp_path: Path) -> None:
        """Its successor has destroyed the stores, and has restored them."""
        with self._writer(tmp_path) as zombie:
            self._commit(tmp_path, NOTHING, _FIRST, "v1")
            ask(zombie, "open")
            try:
                type(self).open(tmp_path, STORES).destroy()
                now = self._commit(tmp_path, NOTHING, _SECOND, "v2")
            except StoreLockedError:
                return
            found = ask(zombie, "write", WRONG, "v1", "v2-zombie")
            expect(found, "StaleStoreError", f"{_ZOMBIE}; the stores were destroyed and restored meanwhile")
            ask(zombie, "destroy")
            self._check(tmp_path, now, "after a process that was refused has destroyed what it had opened")

    def test_two_that_have_it_open_in_one_process(self, tmp_path: Path) -> None:
        """A task may be opened again before an earlier opening of this process has ended."""
        with self.opened(tmp_path) as zombie:
            now = committed(NOTHING, _FIRST, "v1")
            zombie.write(_FIRST, None, "v1")
            check_reads(zombie, now, "after a write")
            try:
                other = self.opened(tmp_path)
            except StoreLockedError:
                return
            with other as successor:
                check_reads(successor, now, "opened a second time in one process")
                successor.write(_SECOND, "v1", "v2")
                now = committed(now, _SECOND, "v2")
                check_refused(zombie, "v1", "another one of this process had written v2")
                check_reads(successor, now, "after a refused write")
                zombie.close()
                check_reads(successor, now, "after another one of this process was closed")
                successor.write({"first": [(b"d", b"3")]}, "v2", "v3")
        self._check(tmp_path, committed(now, {"first": [(b"d", b"3")]}, "v3"), "closed by both of a process")

    def test_of_two_writers_one_wins(self, tmp_path: Path) -> None:
        """Of two concurrent writes, one counts and the other is refused, wherever the first is stopped."""
        with self.opened(tmp_path) as backend:
            backend.write(_FIRST, None, "v000")
            now: Committed = read_all(backend)
        with self._writer(tmp_path) as one, self._writer(tmp_path) as other:
            ask(one, "open")
            if ask(other, "open") == "StoreLockedError":
                return
            steps = ask(one, "write in steps", _FIRST, "v000", "v001", 0)[1]
            now = committed(now, _FIRST, "v001")
            spread = -(-steps // _RACES)
            waited = []
            for number, place in enumerate(range(1, steps + 1, spread), 2):
                now, other_waited = self._race(tmp_path, one, other, now, (number, place), _PATIENCE)
                waited += [place] * other_waited
            if waited:
                place = waited[len(waited) // 2]
                self._race(tmp_path, one, other, now, (number + 1, place), self.longest_wait)

    def _race(
        self, directory: Path, one: Connection, other: Connection, now: Committed, at: tuple[int, int], patience: float
    ) -> tuple[Committed, bool]:
        """Stop one writer at a step of its write, and let another write; return the content, and whether it waited."""
        number, place = at
        writes = [({"first": [(b"who", name)], "second": [(name, b"%d" % number)]}, f"v{number:03d}-{name.decode()}")
                  for name in (b"one", b"other")]  # fmt: skip
        one.send(("write in steps", writes[0][0], now[0], writes[0][1], place))
        first = answer(one)
        was_stopped = first == "stopped"
        other.send(("write", writes[1][0], now[0], writes[1][1]))
        waited = not other.poll(patience)
        assert not waited or patience == _PATIENCE, (
            "a process that was stopped in its write may stop other writers only for a bounded time: then write raises "
            f"StoreLockedError; after {self.longest_wait:g} s it had not"
        )
        if was_stopped:
            one.send("go on")
        outcomes = [answer(one)[0] if was_stopped else first[0], answer(other)]
        where = f"one process was stopped at step {place} of write while another one wrote"
        winners = [index for index, outcome in enumerate(outcomes) if outcome == "written"]
        assert len(winners) == 1 and {*outcomes} - {"written"} <= {refusal.__name__ for refusal in REFUSALS}, (
            f"{where}: the two writes ended with {outcomes}; of two writes after one version one counts, and the other "
            f"raises StaleStoreError, or StoreLockedError where it cannot wait; {_ZOMBIE}"
        )
        if was_stopped and not waited and winners == [1]:
            expect(outcomes[0], "StaleStoreError", f"{where}, and had ended; the first one goes on; {_ZOMBIE}")
        now = committed(now, *writes[winners[0]])
        self._check(directory, now, f"{where}; number {winners[0] + 1} has won")
        for writer in (one, other):
            ask(writer, "open")
        return now, waited

    def test_a_full_disk(self, tmp_path: Path) -> None:
        """A write on a full disk raises StoreError and changes nothing; with space it works again."""
        children = self.children()
        now = self._commit(tmp_path, NOTHING, _FIRST, "v1")
        with children.started(write_without_room, type(self).open, tmp_path) as connection:
            outcome, version, changes = answer(connection)
            where = "a write for which there was no room on the disk"
            assert outcome in ("written", "StoreError"), f"{where} must raise StoreError, and raised {outcome}"
            if outcome == "written":
                now = committed(now, changes, "v2")
            expect(version, now[0], f"{where} raised StoreError, and changes nothing: version")
            answer(connection)
        self._check(tmp_path, now, f"{where} has changed nothing")
        self._commit(tmp_path, now, _SECOND, "v3")
        self.check_destroyed(tmp_path, where)

    def _writer(self, directory: Path) -> AbstractContextManager[Connection]:
        return self.children().started(write_when_told, type(self).open, directory)

    def _commit(self, directory: Path, now: Committed, changes: Changes, version: str) -> Committed:
        with self.opened(directory) as backend:
            backend.write(changes, now[0], version)
        return committed(now, changes, version)

    def _check(self, directory: Path, expected: Committed, rule: str) -> None:
        with self.opened(directory) as backend:
            check_reads(backend, expected, rule)
