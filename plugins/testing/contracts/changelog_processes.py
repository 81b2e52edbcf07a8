"""The part of `ChangelogContract` about processes that race, are killed or find no room, and about damaged files."""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from penstock import Changelog, ChangelogError, Commit, DeltaChangelog, TopicPartition
from penstock.store import Changes

from .changelog_tests import ChangelogTests, append_each, clean, commit_of, entries_of, filled, restored, size_of
from .child import (
    CallStep,
    Race,
    Side,
    act_as,
    answer,
    call_until_killed,
    chosen,
    outcome_of,
    places_in,
    thread_as,
    without_room,
)
from .expectations import State, applied, expect, expect_durable, expect_no_error, on_disk

Call = tuple[str, tuple[Any, ...]]
"""A method of a changelog, and its arguments."""


def is_current() -> bool:
    """Return True, as the log's answer that no other process has the task."""
    return True


def change_until_killed(
    connection: Connection,
    opener: Changelog,
    location: str,
    last: str | None,
    calls: Sequence[Call],
    place: CallStep | None,
) -> None:
    """Open the task as the engine does, make the calls, and kill this process at a step of the last one."""
    log = opener(location, "application", "0_0")
    if last is not None:
        deque(log.restore(last, None).steps, 0)
    call_until_killed(connection, log, calls, place)


def append_without_room(connection: Connection, opener: Changelog, location: str, last: str, large: Any) -> None:
    """Append a delta while files cannot grow, then a small one; send the error."""
    log = opener(location, "application", "0_0")
    deque(log.restore(last, None).steps, 0)
    with without_room():
        outcome = outcome_of(partial(log.append, *large), ChangelogError, done="appended", with_message=True)
    connection.send(outcome)
    log.append(*connection.recv())
    connection.send("appended")


def act_when_told(connection: Connection, opener: Changelog, location: str, call: str) -> None:
    """Act as a side of races until the connection ends."""
    act_as(connection, _ChangelogSide(opener, location, {}), call, ChangelogError)


class _ChangelogSide(Side):
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
            self._objects[number] = self._opener(self._location, "application", f"0_{number}")
        self._log = self._objects[number]
        if name == "one":
            for at in range(3):
                previous = f"{at - 1}-v" if at else None
                self._log.append({"s": [(b"%d" % at, b"v")]}, previous, f"{at}-v", self._commit(previous or "0-v", at))
        else:
            self._restored()

    def end(self) -> None:
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
        changes = {"s": [(self._name.encode(), b"appended")]}
        return lambda: self._log.append(changes, "2-v", f"3-{self._name}", self._commit("2-v", 3))

    def snapshots(self) -> Callable[[], object]:
        rows = [("s", b"%d" % at, b"v") for at in range(3)]
        return lambda: self._log.snapshot("2-v", iter(rows), self._commit("2-v", 3))

    def cleans(self) -> Callable[[], object]:
        """Clean when nothing is older than the grace period."""
        now_ms = int(time.time() * 1000)
        return lambda: self._log.clean("2-v", 1 << 30, now_ms, is_current)

    def restores(self) -> Callable[[], object]:
        return self._restored

    def proves(self) -> Callable[[], object]:
        return lambda: sorted(self._log.proven() - {"2-v"})

    def destroys(self) -> Callable[[], object]:
        return self._log.destroy


_CASES = [
    *((*calls, "another process") for calls in (
        ("appends", "cleans"), ("cleans", "appends"), ("snapshots", "cleans"), ("cleans", "snapshots"),
        ("appends", "appends"), ("appends", "snapshots"), ("snapshots", "appends"), ("snapshots", "snapshots"),
        ("restores", "snapshots"), ("restores", "cleans"), ("proves", "appends"), ("proves", "snapshots"),
        ("destroys", "appends"), ("appends", "destroys"),
    )),
    *((*calls, "another thread") for calls in (
        ("appends", "snapshots"), ("snapshots", "appends"), ("appends", "cleans"), ("cleans", "appends"),
    )),
]  # fmt: skip
"""The stopped call, the calls made meanwhile, and their side; `_ChangelogSide` has methods of these names."""


class RaceTests(ChangelogTests):
    """Two concurrent calls have the result of one of their two orders, wherever one of them is interrupted."""

    races: ClassVar[int] = 12
    """Number of steps of a call at which another call is made, besides each release of a lock (0: none)."""

    @pytest.mark.parametrize(("held", "other", "by"), _CASES, ids=lambda name: str(name).replace(" ", "-"))
    def test_two_calls_at_once(self, tmp_path: Path, held: str, other: str, by: str) -> None:
        """Another process is a zombie or a successor, and its grace period has just begun; a thread has the object."""
        if not self.races:
            pytest.skip("`races` of this suite is 0")
        opener, location = type(self).changelog, self.location(tmp_path)
        shared: dict[int, DeltaChangelog] = {}
        with ExitStack() as stack:
            if by == "another process":
                work = opener, location, other
                theirs = stack.enter_context(self.children().started(act_when_told, *work))
            else:
                theirs = stack.enter_context(thread_as(_ChangelogSide(opener, location, shared), other, ChangelogError))
            ours = stack.enter_context(thread_as(_ChangelogSide(opener, location, shared), held, ChangelogError))
            what = f"{by} did what {other!r} does beside what {held!r} does"
            Race(ours, theirs, partial(self._look, location)).check(self.races, what, ChangelogError)

    def _look(self, location: str, number: int) -> dict[str, Any]:
        log = type(self).changelog(location, "application", f"0_{number}")
        found: dict[str, Any] = {"proven": log.proven(), "beginnings": log.beginnings(), "kept": log.kept("2-v")}
        for version in ("0-v", "2-v", "3-one", "3-two"):
            try:
                found[version] = restored(log, version, None, {})
            except ChangelogError:
                found[version] = "ChangelogError"
        log.close()
        return found


_FLIPS = 40
"""Number of places at which a file is damaged."""


class DamageTests(ChangelogTests):
    """What was appended is there after any crash, and damage is an error, never another state."""

    kills: ClassVar[int] = 60
    """Maximum number of places in a call at which a process is killed."""

    @pytest.mark.parametrize("action", ["append", "first append", "snapshot", "clean", "destroy"])
    def test_a_process_killed_while_it_changes_the_changelog(self, tmp_path: Path, action: str) -> None:
        """Every append that has returned is restored; the next process restores, appends and snapshots as ever."""
        killing = _Killing(self, tmp_path, action)
        for place in chosen(killing.kill(None), self.kills):
            killing.kill(place)
        killing.check_left()

    def test_an_append_is_on_disk_when_it_returns(self, tmp_path: Path) -> None:
        """The commit that follows counts for ever, so a crash of the machine must not take its delta."""
        with on_disk(tmp_path) as place:
            log = self.open(place)
            log.append({}, None, "0-v")
            random = Random(1)
            for number in range(3):
                log.append({"s": [(b"%d" % number, random.randbytes(1 << 20))]}, f"{number}-v", f"{number + 1}-v")
                expect_durable(place, "append must make a delta durable before it returns")
            log.close()

    def test_a_full_disk(self, tmp_path: Path) -> None:
        """An append on a full disk raises ChangelogError, and later versions are restored."""
        children = self.children()
        log = self.open(tmp_path)
        log.append({"s": [(b"a", b"1")]}, None, "0-v")
        log.close()
        large = {"s": [(b"large", Random(1).randbytes(6 << 20))]}, "0-v", "1-lost"
        location = self.location(tmp_path)
        with children.started(append_without_room, type(self).changelog, location, "0-v", large) as connection:
            outcome = answer(connection)
            where = "an append for which there was no room on the disk"
            has_returned = outcome == "appended"
            assert has_returned or outcome.startswith("ChangelogError"), (
                f"{where} must raise ChangelogError, and raised {outcome}"
            )
            last = "1-lost" if has_returned else "0-v"
            connection.send(({"s": [(b"b", b"2")]}, last, "2-v"))
            expect(answer(connection), "appended", f"{where}; the next one, for which there is room")
        with expect_no_error(f"{where} raised nothing, or breaks what follows"):
            state = restored(self.open(tmp_path), "2-v", None, {})
        rows = {b"a": b"1", b"b": b"2"} | (dict(large[0]["s"]) if has_returned else {})
        expect(state, {"s": rows}, f"{where}, and one that followed")

    @pytest.mark.parametrize("damage", ["a flipped bit", "a cut", "zeros at the end", "a lost file"])
    def test_damage_is_an_error(self, tmp_path: Path, damage: str) -> None:
        """After damage anywhere in a file, the state is restored unchanged, or ChangelogError names the damage."""
        known = self._written(tmp_path / "whole")
        files = [file for file in sorted((tmp_path / "whole").rglob("*")) if file.is_file()]
        if self.in_one_process or not files:
            pytest.skip("this changelog keeps no files here")
        refused = tried = 0
        for file in files:
            for number, change in enumerate(_DAMAGES[damage](file.read_bytes())):
                copy = tmp_path / f"{file.name[:20]}-{number}"
                shutil.copytree(tmp_path / "whole", copy)
                damaged = copy / file.relative_to(tmp_path / "whole")
                if change is None:
                    damaged.unlink()
                else:
                    damaged.write_bytes(change)
                where = f"{damage} ({number}) in {file.name}"
                tried += 1
                refused += self._check_damaged(copy, known, where, (file.name, "0_0", *known))
                if number % 8 == 0:
                    self._check_reset(copy, where)
                shutil.rmtree(copy)
        assert tried == 0 or refused, f"{damage}: of {tried} places none was noticed"

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks for open files where Linux lists them")
    @pytest.mark.parametrize("damage", ["cut", "longer", "lost"])
    def test_a_file_is_not_as_it_was_left(self, tmp_path: Path, damage: str) -> None:
        """A full disk, or an operator, has changed a file: an append to it is restored, or raises ChangelogError."""
        if self.in_one_process:
            pytest.skip("this changelog keeps no files here")
        number, files = 0, [tmp_path]
        while number < len(files):
            directory = tmp_path / f"{number}"
            directory.mkdir()
            log = self.open(directory)
            append_each(log, None, "0-v", "1-v", "2-v")
            # What a process holds open, it cannot compare with what it left.
            held = {os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")}
            files = [each for each in sorted(directory.rglob("*")) if each.is_file()]
            file = files[number] if files else directory
            number += 1
            if files and os.path.realpath(file) not in held:
                self._append_to(log, directory, file, damage)
            log.close()

    def _append_to(self, log: DeltaChangelog, directory: Path, file: Path, damage: str) -> None:
        content = file.read_bytes()
        left = {"cut": content[:-3], "longer": content + b"rest of another", "lost": None}[damage]
        file.unlink() if left is None else file.write_bytes(left)
        where = f"{file.name} was {damage} when the process appended its next delta"
        try:
            append_each(log, "2-v", "3-v")
        except ChangelogError:
            return
        except Exception as error:
            raise AssertionError(f"{where}: append must raise ChangelogError, and raised {error!r}") from error
        if left == (file.read_bytes() if file.exists() else None):
            return
        with expect_no_error(f"{where}: append returned, and what it appended is not there"):
            known = {"2-v": {"s": {b"key": b"2-v"}}}
            expect(restored(self.open(directory), "3-v", "2-v", known), {"s": {b"key": b"3-v"}}, where)

    def _written(self, directory: Path) -> dict[str, State]:
        """Write a chain with a snapshot in its middle; return the state at each version."""
        directory.mkdir()
        log = self.open(directory)
        known: dict[str, State] = {}
        state: State = {}
        previous = None
        for number in range(7):
            version = f"{number:012d}-{number:08x}_0123abcd"
            changes: Changes = {
                "s": [(b"key", b"%d" % number), (b"key%d" % number, b"value" * 40)],
                "t": [(b"gone", None if number % 2 else b"here")],
            }
            log.append(changes, previous, version, commit_of(previous or version, number))
            state = applied(state, changes)
            known[version] = state
            if number == 3:
                log.snapshot(version, entries_of(state), commit_of(version, number))
            previous = version
        log.close()
        return known

    def _check_reset(self, directory: Path, where: str) -> None:
        """Destroy a damaged changelog, as `penstock reset` does, and begin anew."""
        with expect_no_error(f"{where}: destroy and a new chain must work"):
            log = self.open(directory)
            log.destroy()
            log.append({"s": [(b"key", b"new")]}, None, "0-new")
            expect(
                restored(self.open(directory), "0-new", None, {}), {"s": {b"key": b"new"}}, f"{where}: after destroy"
            )
            log.close()

    def _check_damaged(self, directory: Path, known: dict[str, State], where: str, names: Sequence[str]) -> bool:
        """Restore in several ways; return whether one was refused."""
        refused = False
        versions = list(known)
        for target, have in ((versions[-1], None), (versions[-1], versions[4]), (versions[2], None)):
            try:
                log = self.open(directory)
                expect(restored(log, target, have, known), filled(known[target]), f"{where}: the state at {target}")
            except ChangelogError as error:
                refused = True
                if not any(name in str(error) for name in names):
                    raise AssertionError(f"{where}: the error must name the file, task or version: {error}") from error
            except AssertionError as error:
                raise AssertionError(
                    f"{where}: damage must raise ChangelogError, never restore another state: {error}"
                ) from error
            except Exception as error:
                raise AssertionError(f"{where}: damage must raise ChangelogError, and raised {error!r}") from error
            else:
                log.close()
        return refused


def _places(size: int) -> list[int]:
    """Return some places of a file: its beginning, its end, and some between."""
    edge = min(size, _FLIPS // 4)
    between = Random(size).sample(range(size), min(size, _FLIPS // 2))
    return sorted({*range(edge), *range(size - edge, size), *between})


_DAMAGES: dict[str, Callable[[bytes], Iterable[bytes | None]]] = {
    "a flipped bit": lambda data: (
        data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :] for at in _places(len(data))
    ),
    "a cut": lambda data: (data[:at] for at in _places(len(data))[::3]),
    "zeros at the end": lambda data: (data[:at] + bytes(len(data) - at) for at in _places(len(data))[::3]),
    "a lost file": lambda data: [None],
}


class _Killing:
    """A changelog whose writers are killed one after the other, and the content that it must have."""

    def __init__(self, contract: ChangelogTests, directory: Path, action: str) -> None:
        self._contract = contract
        self._directory = directory
        self._action = action
        self._children = contract.children()
        self._known: dict[str, State] = {}
        self._last: str | None = None
        self._number = 0

    def kill(self, place: CallStep | None) -> list[CallStep]:
        """Let a process append, and kill it at a step of the action that follows; return its steps if it survives."""
        appends = [] if self._action == "first append" else [self._append(self._last)]
        last = appends[-1][1][2] if appends else None
        lost = None
        action: Call
        if self._action.endswith("append"):
            action = self._append(last)
            lost = action[1][2]
        elif self._action == "snapshot":
            action = "snapshot", (last, list(entries_of(self._known[str(last)])), commit_of(str(last), self._number))
        elif self._action == "clean":
            appends.append(("snapshot", (last, list(entries_of(self._known[str(last)])))))
            action = "clean", (last, 0, 1 << 45, is_current)
        else:
            action = "destroy", ()
        contract, location = self._contract, self._contract.location(self._directory)
        work = type(contract).changelog, location, self._last, [*appends, action], place
        where = f"a process {f'was killed at step {place} of' if place else 'ended after'} {self._action}"
        with self._children.started(change_until_killed, *work) as connection:
            expect(answer(connection), "ready", f"{where}: before it")
            places = places_in(connection, place, self._action)
        with expect_no_error(f"{where}: the next one must restore and append"):
            self._check(last, lost, where, was_killed=not places)
        return places

    def check_left(self) -> None:
        """Look for files that killed processes left: `clean` deletes them once they are old, and `destroy` all."""
        copy = self._directory / "copy"
        shutil.copytree(self._directory, copy)
        log = self._contract.open(copy)
        log.destroy()
        log.close()
        files = size_of(copy)[0]
        shutil.rmtree(copy)
        assert files <= 2, f"destroy, after kills in {self._action}, has left {files} files"
        found = []
        for directory in (self._directory, self._directory / "undisturbed"):
            directory.mkdir(exist_ok=True)
            log = self._contract.open(directory)
            last = self._last if directory == self._directory else None
            for _ in range(2):
                method, arguments = self._append(last)
                getattr(log, method)(*arguments)
                last = str(arguments[2])
            log.snapshot(str(last), entries_of(self._known[str(last)]))
            clean(log, str(last), days=(400, 500))
            log.close()
            found.append(size_of(directory)[0])
        assert found[0] <= found[1] + 2, (
            f"after kills in {self._action} and `clean` there are {found[0]} files, and without kills {found[1]}"
        )

    def _check(self, last: str | None, lost: str | None, where: str, *, was_killed: bool) -> None:
        log = self._contract.open(self._directory)
        if self._action == "destroy":
            self._check_all_or_nothing(str(last), where)
            log.destroy()
            last = None
        elif last is not None:
            self._check_restored(last, f"{where}: an append that had returned is restored")
        if lost is not None:
            if was_killed:
                self._check_all_or_nothing(lost, where)
            else:
                self._check_restored(lost, f"{where}: an append that had returned is restored")
        if last is None and self._action == "first append":
            log.destroy()
        # As the next process does: it restores, goes on from the last commit, and snapshots.
        if last is not None:
            expect(restored(log, last, None, self._known), filled(self._known[last]), where)
        for _ in range(2):
            method, arguments = self._append(last)
            getattr(log, method)(*arguments)
            last = str(arguments[2])
            self._check_restored(last, f"{where}, and the next one has appended")
        assert last is not None, f"{where}: the next process has appended, and there is no version"
        if self._number % 3 == 0:
            log.snapshot(last, entries_of(self._known[str(last)]))
            self._check_restored(last, f"{where}, and the next one has written a snapshot")
        log.close()
        if self._action == "first append":
            self._contract.open(self._directory).destroy()
            last = None
        self._last = last

    def _check_restored(self, version: str, rule: str) -> None:
        log = self._contract.open(self._directory)
        expect(restored(log, version, None, self._known), filled(self._known[version]), rule)
        log.close()

    def _check_all_or_nothing(self, version: str, where: str) -> None:
        """Check that an interrupted append or destroy took place whole, or not at all."""
        log = self._contract.open(self._directory)
        try:
            state = restored(log, version, None, self._known)
        except ChangelogError:
            return
        expect(
            state, filled(self._known[version]), f"{where}: a version is restored whole, or ChangelogError is raised"
        )
        log.close()

    def _append(self, previous: str | None) -> Call:
        counter = 0 if previous is None else int(previous.partition("-")[0]) + 1
        self._number += 1
        version = f"{counter:012d}-{self._number:08x}_0123abcd"
        value = Random(self._number).randbytes(3000)
        changes: Changes = {"s": [(b"%d" % (self._number % 5), value), (b"a", None if self._number % 2 else value)]}
        changes = {"s": sorted(changes["s"])}
        self._known[version] = applied(self._known[previous] if previous else {}, changes)
        return "append", (changes, previous, version, commit_of(previous or version, self._number))
