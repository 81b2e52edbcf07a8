"""The part of `StoreBackendContract` about several writers of one directory, and about writes that find no room."""

from __future__ import annotations

import shutil
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import StoreLockedError
from penstock.store import Changes

from .child import answer
from .expectations import expect
from .store_children import REFUSALS, STORES, open_when_told, read_all, write_when_told, write_without_room
from .store_tests import NOTHING, WRONG, Committed, StoreTests, check_reads, check_refused, committed

_RACES = 14
"""In how many places of a write another process writes."""
_STOPS = 8
"""In how many places of an opening another process opens."""
_PATIENCE = 0.3
"""Seconds that another writer gets to show whether it must wait for the one that was stopped in its write."""
_ZOMBIE = "a write whose `previous` is no longer the version raises StaleStoreError and changes nothing"

_FIRST: Changes = {"first": [(b"a", b"1"), (b"b", b"1")], "second": [(b"a", b"1")]}
_SECOND: Changes = {"first": [(b"a", b"2"), (b"c", b"2")], "second": [(b"a", None)]}


class WriterTests(StoreTests):
    """A process that was replaced changes nothing, however its write falls between those of its successor."""

    longest_wait: ClassVar[float] = 60
    """Seconds within which `write` must raise StoreLockedError where another process keeps it waiting."""

    def test_a_zombie_at_an_old_version_is_refused(self, tmp_path: Path) -> None:
        """It opened the stores, was replaced by another process, and writes after what it knows."""
        with _Writer(self, tmp_path) as zombie:
            now = self._commit(tmp_path, NOTHING, _FIRST, "v1")
            expect(zombie.ask("open"), "v1", "a process that opens a directory finds the last commit")
            try:
                now = self._commit(tmp_path, now, _SECOND, "v2")
            except StoreLockedError:
                return  # one process at a time has it open
            for previous, version in (("v1", "v2-zombie"), ("v1", "v1"), (None, "v0-zombie")):
                found = zombie.ask("write", WRONG, previous, version)
                expect(found, "StaleStoreError", f"{_ZOMBIE}; another process had written v2")
                self._check(tmp_path, now, "after a refused write")
            zombie.ask("close")
            self._check(tmp_path, now, "after a process that was refused has closed")

    @pytest.mark.parametrize("how", ["destroyed", "deleted"])
    def test_a_zombie_of_a_directory_that_was_removed_is_refused(self, tmp_path: Path, how: str) -> None:
        """Its successor has destroyed the stores, or an operator has deleted their files."""
        with _Writer(self, tmp_path) as zombie:
            self._commit(tmp_path, NOTHING, _FIRST, "v1")
            zombie.ask("open")
            if how == "deleted":
                for file in tmp_path.iterdir():
                    shutil.rmtree(file) if file.is_dir() else file.unlink()
            else:
                try:
                    type(self).open(tmp_path, STORES).destroy()
                except StoreLockedError:
                    return
            found = zombie.ask("write", WRONG, "v1", "v2-zombie")
            expect(found, "StaleStoreError", f"{_ZOMBIE}; the stores' files were {how} meanwhile")
            zombie.ask("close")
        self._check(tmp_path, NOTHING, f"files were {how}, and a process that had them open was refused")

    def test_a_process_stops_while_it_opens(self, tmp_path: Path) -> None:
        """Or closes, wherever that is: others open beside it, or raise StoreLockedError in a bounded time."""
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
        with _Writer(self, tmp_path) as zombie:
            self._commit(tmp_path, NOTHING, _FIRST, "v1")
            zombie.ask("open")
            try:
                type(self).open(tmp_path, STORES).destroy()
                now = self._commit(tmp_path, NOTHING, _SECOND, "v2")
            except StoreLockedError:
                return
            found = zombie.ask("write", WRONG, "v1", "v2-zombie")
            expect(found, "StaleStoreError", f"{_ZOMBIE}; the stores were destroyed and restored meanwhile")
            zombie.ask("destroy")
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
        """Wherever one stops within its write while another writes: one write counts, and the other one is refused."""
        with self.opened(tmp_path) as backend:
            backend.write(_FIRST, None, "v000")
            now: Committed = read_all(backend)
        with _Writer(self, tmp_path) as one, _Writer(self, tmp_path) as other:
            one.ask("open")
            if other.ask("open") == "StoreLockedError":
                return
            steps = one.ask("write in steps", _FIRST, "v000", "v001", 0)[1]
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
        self, directory: Path, one: _Writer, other: _Writer, now: Committed, at: tuple[int, int], patience: float
    ) -> tuple[Committed, bool]:
        """Stop one writer at a step of its write, and let another write; return the content, and whether it waited."""
        number, place = at
        writes = [({"first": [(b"who", name)], "second": [(name, b"%d" % number)]}, f"v{number:03d}-{name.decode()}")
                  for name in (b"one", b"other")]  # fmt: skip
        one.send("write in steps", writes[0][0], now[0], writes[0][1], place)
        first = one.answer()
        was_stopped = first == "stopped"
        other.send("write", writes[1][0], now[0], writes[1][1])
        waited = not other.connection.poll(patience)
        assert not waited or patience == _PATIENCE, (
            "a process that was stopped in its write may stop other writers only for a bounded time: then write raises "
            f"StoreLockedError; after {self.longest_wait:g} s it had not"
        )
        if was_stopped:
            one.send("go on")
        outcomes = [one.answer()[0] if was_stopped else first[0], other.answer()]
        where = f"one process was stopped at step {place} of write while another one wrote"
        winners = [index for index, outcome in enumerate(outcomes) if outcome == "written"]
        assert len(winners) == 1 and {*outcomes} - {"written"} <= {*REFUSALS}, (
            f"{where}: the two writes ended with {outcomes}; of two writes after one version one counts, and the other "
            f"raises StaleStoreError, or StoreLockedError where it cannot wait; {_ZOMBIE}"
        )
        if was_stopped and not waited and winners == [1]:
            expect(outcomes[0], "StaleStoreError", f"{where}, and had ended; the first one goes on; {_ZOMBIE}")
        now = committed(now, *writes[winners[0]])
        self._check(directory, now, f"{where}; number {winners[0] + 1} has won")
        for writer in (one, other):
            writer.ask("open")
        return now, waited

    def test_a_full_disk(self, tmp_path: Path) -> None:
        """A write for which there is no room raises StoreError and changes nothing; with room it works again."""
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

    # ------------------------------------------------------------------ helpers

    def _commit(self, directory: Path, now: Committed, changes: Changes, version: str) -> Committed:
        with self.opened(directory) as backend:
            backend.write(changes, now[0], version)
        return committed(now, changes, version)

    def _check(self, directory: Path, expected: Committed, rule: str) -> None:
        with self.opened(directory) as backend:
            check_reads(backend, expected, rule)


class _Writer:
    """Another process, which opens a directory and writes when it is told to."""

    def __init__(self, contract: StoreTests, directory: Path) -> None:
        self._started = contract.children().started(write_when_told, type(contract).open, directory)

    def __enter__(self) -> _Writer:
        self.connection = self._started.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._started.__exit__(*error)

    def send(self, *order: Any) -> None:
        self.connection.send(order)

    def answer(self) -> Any:
        return answer(self.connection)

    def ask(self, *order: Any) -> Any:
        self.send(*order)
        return self.answer()
