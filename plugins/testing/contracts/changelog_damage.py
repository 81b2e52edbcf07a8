"""The part of `ChangelogContract` about processes that are killed, and about files that are damaged, cut or lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from penstock import ChangelogError, DeltaChangelog
from penstock.store import Changes

from .changelog_children import Call, append_without_room, change_until_killed, is_current
from .changelog_places import size_of
from .changelog_tests import ChangelogTests, append_each, clean, commit_of, filled, restored
from .child import Step, answer, chosen, places_in
from .durability import expect_durable, on_disk
from .expectations import expect
from .histories import State, applied

_FLIPS = 40
"""In how many places a file is damaged."""


class DamageTests(ChangelogTests):
    """What was appended is there after any crash, and damage is an error, never another state."""

    kills: ClassVar[int] = 60
    """In how many places of a call a process is killed, at most."""

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
        """An append for which there is no room raises ChangelogError, and what follows is restored."""
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
        try:
            state = restored(self.open(tmp_path), "2-v", None, {})
        except ChangelogError as error:
            raise AssertionError(f"{where} raised nothing, or breaks what follows: {error}") from error
        rows = {b"a": b"1", b"b": b"2"} | (dict(large[0]["s"]) if has_returned else {})
        expect(state, {"s": rows}, f"{where}, and one that followed")

    @pytest.mark.parametrize("damage", ["a flipped bit", "a cut", "zeros at the end", "a lost file"])
    def test_damage_is_an_error(self, tmp_path: Path, damage: str) -> None:
        """Of any place of any file: the state is restored as it was, or ChangelogError says what is damaged."""
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
        """By a disk that was full, or an operator: an append to it is restored, or raises ChangelogError."""
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
        try:
            known = {"2-v": {"s": {b"key": b"2-v"}}}
            expect(restored(self.open(directory), "3-v", "2-v", known), {"s": {b"key": b"3-v"}}, where)
        except ChangelogError as error:
            raise AssertionError(f"{where}: append returned, and what it appended is not there: {error}") from error

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
                rows = [
                    (store, key, value) for store, rows in sorted(state.items()) for key, value in sorted(rows.items())
                ]
                log.snapshot(version, iter(rows), commit_of(version, number))
            previous = version
        log.close()
        return known

    def _check_reset(self, directory: Path, where: str) -> None:
        """Destroy what is damaged, as `penstock reset` does, and begin anew."""
        try:
            log = self.open(directory)
            log.destroy()
            log.append({"s": [(b"key", b"new")]}, None, "0-new")
            expect(
                restored(self.open(directory), "0-new", None, {}), {"s": {b"key": b"new"}}, f"{where}: after destroy"
            )
            log.close()
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{where}: destroy and a new chain must work, and raised {error!r}") from error

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


def _flipped(data: bytes) -> Iterator[bytes]:
    for place in _places(len(data)):
        yield data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]


def _cut(data: bytes) -> Iterator[bytes]:
    for place in _places(len(data))[::3]:
        yield data[:place]


def _ending_in_zeros(data: bytes) -> Iterator[bytes]:
    for place in _places(len(data))[::3]:
        yield data[:place] + bytes(len(data) - place)


def _places(size: int) -> list[int]:
    """Return some places of a file: its beginning, its end, and some between."""
    edge = min(size, _FLIPS // 4)
    between = Random(size).sample(range(size), min(size, _FLIPS // 2))
    return sorted({*range(edge), *range(size - edge, size), *between})


_DAMAGES: dict[str, Callable[[bytes], Iterator[bytes | None]]] = {
    "a flipped bit": _flipped,
    "a cut": _cut,
    "zeros at the end": _ending_in_zeros,
    "a lost file": lambda data: iter([None]),
}


class _Killing:
    """A changelog in which one process after the other is killed, and what it must have."""

    def __init__(self, contract: ChangelogTests, directory: Path, action: str) -> None:
        self._contract = contract
        self._directory = directory
        self._action = action
        self._children = contract.children()
        self._known: dict[str, State] = {}
        self._last: str | None = None
        self._number = 0

    def kill(self, place: Step | None) -> list[Step]:
        """Let a process append, and kill it at a step of the action that follows; return its steps if it survives."""
        appends = [] if self._action == "first append" else [self._append(self._last)]
        last = appends[-1][1][2] if appends else None
        lost = None
        action: Call
        if self._action.endswith("append"):
            action = self._append(last)
            lost = action[1][2]
        elif self._action == "snapshot":
            action = "snapshot", (last, self._entries(last), commit_of(str(last), self._number))
        elif self._action == "clean":
            appends.append(("snapshot", (last, self._entries(last))))
            action = "clean", (last, 0, 1 << 45, is_current)
        else:
            action = "destroy", ()
        contract, location = self._contract, self._contract.location(self._directory)
        work = type(contract).changelog, location, self._last, [*appends, action], place
        where = f"a process {f'was killed at step {place} of' if place else 'ended after'} {self._action}"
        with self._children.started(change_until_killed, *work) as connection:
            expect(answer(connection), "ready", f"{where}: before it")
            places = places_in(connection, place, self._action)
        try:
            self._check(last, lost, where, was_killed=not places)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{where}: the next one must restore and append, and raised {error!r}") from error
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
            log.snapshot(str(last), iter(self._entries(last)))
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
            log.snapshot(last, iter(self._entries(last)))
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
        """Check what was being appended or destroyed: whole, or an error."""
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

    def _entries(self, version: str | None) -> list[tuple[str, bytes, bytes]]:
        state = self._known[str(version)]
        return [(store, *row) for store, rows in sorted(state.items()) for row in sorted(rows.items())]
