"""The part of `StoreBackendContract` about processes that are killed while they write, open, close or destroy."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from penstock import StoreBackend
from penstock.store import Changes

from .child import Step, answer, chosen, places_in
from .expectations import shown
from .store_children import STORES, read_all, write_until_killed
from .store_tests import NOTHING, Committed, StoreTests, check_reads, committed

_FEW_ROWS, _MANY_ROWS, _LARGE_ROWS = 4, 12_000, 40
_KILLS = {_FEW_ROWS: 60, _MANY_ROWS: 16, _LARGE_ROWS: 8}
"""By the rows of a write: in how many places it is killed at most."""
_LARGE_BYTES = 500_000
"""How long each value is in a write of `_LARGE_ROWS`, of 20 MB: a backend may write in parts of some bytes."""
_OTHER_KILLS = 16

_ATOMIC = "write applies all changes and records the version in one atomic step"
_DURABLE = "a write that has returned survives its process"


class KillTests(StoreTests):
    """A process may be killed at any step; what a write had returned for is there, and the next write works.

    Python tells which function written in C is called; there the process kills itself.
    """

    @pytest.mark.parametrize("rows", [*_KILLS])
    def test_a_process_killed_inside_write(self, tmp_path: Path, rows: int) -> None:
        """Wherever it is killed, the store has the version before `write` with its rows, or that after it with its."""
        killing = _Killing(self, tmp_path, rows)
        for place in killing.places("write", _KILLS[rows]):
            killing.kill("write", place)
        self.check_destroyed(tmp_path, "processes were killed inside write")

    @pytest.mark.parametrize("action", ["open", "first write"])
    def test_a_process_killed_in_a_new_directory(self, tmp_path: Path, action: str) -> None:
        """It is a new directory still, or has the first commit."""
        killing = _Killing(self, tmp_path, _FEW_ROWS)
        for place in killing.places(action, _OTHER_KILLS):
            killing.destroy()
            killing.kill(action, place)
        self.check_destroyed(tmp_path, f"processes were killed in their {action}")

    def test_a_process_killed_while_it_opens_after_a_kill(self, tmp_path: Path) -> None:
        """It may be repairing what the first kill has left: the last commit stays."""
        killing = _Killing(self, tmp_path, _FEW_ROWS)
        left: dict[frozenset[str], Step] = {}
        for place in killing.places("write", _KILLS[_FEW_ROWS]):
            killing.kill("write", place, check=False)
            # File names with other numbers are as good.
            left[frozenset(re.sub(r"\d+", "#", file.name) for file in tmp_path.rglob("*"))] = place
            killing.check(f"a process was killed at step {place} of write")
        for first in left.values():
            killing.kill("write", first, check=False)
            for place in killing.places("open", _OTHER_KILLS):
                killing.kill("write", first, check=False)
                killing.kill("open", place)

    @pytest.mark.parametrize("action", ["close", "destroy"])
    def test_a_process_killed_while_it_ends(self, tmp_path: Path, action: str) -> None:
        """In `close` nothing is lost; after `destroy` was killed, there is all or nothing."""
        killing = _Killing(self, tmp_path, _FEW_ROWS)
        for place in killing.places(action, _OTHER_KILLS):
            killing.kill(action, place)
        self.check_destroyed(tmp_path, f"processes were killed in {action}")


class _Killing:
    """A directory in which one process after the other is killed, and what it must have."""

    def __init__(self, contract: StoreTests, directory: Path, rows: int) -> None:
        self._opener = type(contract).open
        self._directory = directory
        self._rows = rows
        self._children = contract.children()
        self._allowed: list[Committed] = [NOTHING]
        self._number = 0
        self.check("a new directory")

    def places(self, action: str, most: int) -> list[Step]:
        """Return the steps of the action at which to kill it, found in a process that is not killed."""
        if action == "first write":
            self.destroy()
        return chosen(self.kill(action, None), most)

    def kill(self, action: str, place: Step | None, *, check: bool = True) -> list[Step]:
        """Let a process commit, and kill it at a step of the next action; return its steps if it survives."""
        small = large = version = None
        if action != "open":
            [now] = self._allowed
            version = now[0]
            if action != "first write":
                small = self._following(now, _FEW_ROWS)
                self._allowed = [now := committed(now, *small)]
            if action.endswith("write"):
                large = self._following(now, self._rows)
        where = (
            f"a process was killed at step {place} of {action}" if place else f"a process called {action}, and ended"
        )
        work = self._opener, self._directory, version, small, large, action, place
        with self._children.started(write_until_killed, *work) as connection:
            if small:
                try:
                    told = answer(connection)
                    assert told == "committed", f"{where}: the commit before it failed: {told}"
                except EOFError:
                    raise AssertionError(f"{where}, and had not made the commit before: it ended early") from None
            places = places_in(connection, place, action)
        if places:
            place = None
        before = self._allowed[0]
        if large is not None:
            self._allowed = [committed(before, *large)] + [before] * bool(place)
        elif action == "destroy":
            self._allowed = [NOTHING] + [before] * bool(place)
        if check:
            self.check(where)
        return places

    def destroy(self) -> None:
        """Make the directory a new one."""
        self._opener(self._directory, STORES).destroy()
        self._allowed = [NOTHING]

    def check(self, where: str) -> None:
        """Open, compare, commit, close and compare again."""
        try:
            with closing(self._opener(self._directory, STORES)) as backend:
                found = self._check_found(backend, where)
                changes, version = self._following(found, _FEW_ROWS)
                backend.write(changes, found[0], version)
                now = committed(found, changes, version)
                check_reads(backend, now, f"{where}, and the next one wrote")
            with closing(self._opener(self._directory, STORES)) as backend:
                check_reads(backend, now, f"{where}, the next one wrote, and closed")
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{where}: the next one must open, read and write, and raised {error!r}") from error
        self._allowed = [now]

    def _check_found(self, backend: StoreBackend, where: str) -> Committed:
        found = read_all(backend)
        assert backend.trusted() or (NOTHING in self._allowed and found == NOTHING), (
            f"{where}: trusted() is False, but a killed process damages nothing, except in destroy"
        )
        if found not in self._allowed:
            raise AssertionError(f"{where}: {self._wrong(found)}")
        check_reads(backend, found, where)
        return found

    def _wrong(self, found: Committed) -> str:
        expected = next((each for each in self._allowed if each[0] == found[0]), None)
        rule = f"{_ATOMIC}, and {_DURABLE}"
        if expected is None:
            versions = " or ".join(repr(version) for version, _ in self._allowed)
            return f"found version {found[0]!r}, expected {versions}; {rule}"
        sizes = {store: len(rows) for store, rows in found[1].items()}
        wrong = {
            store: sorted(set(rows.items()) ^ set(expected[1][store].items()))[:3] for store, rows in found[1].items()
        }
        return f"at version {found[0]!r} found rows that do not belong to it: {sizes} rows, {shown(wrong)}; {rule}"

    def _following(self, before: Committed, rows: int) -> tuple[Changes, str]:
        """Return changes that put, replace and delete so many rows in both stores, and their version."""
        self._number += 1
        value = b"value %d" % self._number
        if rows == _LARGE_ROWS:
            value = value.ljust(_LARGE_BYTES, b"\0")
        changes: dict[str, list[tuple[bytes, bytes | None]]] = {}
        for store, share in zip(STORES, (rows - rows // 4, rows // 4), strict=True):
            present = before[1][store]
            keys = [b"%05d" % row for row in range(share or rows)]
            changes[store] = [
                (key, None if key in present and at % 3 == self._number % 3 else value) for at, key in enumerate(keys)
            ]
        return changes, f"{self._number:012d}-0123abcd_5e6f7890"
