"""The contract suite for store backends finds each of these planted bugs, by the test that names the rule."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.testing.contracts.store_backend import StoreBackendContract
from penstock.stores.memory import MemoryBackend

from . import planted_backends as planted
from . import planted_writes as writes


class GetsABytearray(MemoryBackend):
    def get(self, store: str, key: bytes) -> Any:
        value = super().get(store, key)
        return None if value is None else bytearray(value)


class YieldsBytearrays(MemoryBackend):
    def range(self, *args: Any, **options: Any) -> Any:
        for key, value in super().range(*args, **options):
            yield key, bytearray(value)


class CountsInFloats(MemoryBackend):
    def approximate_count(self, store: str) -> Any:
        return float(super().approximate_count(store))


class LeavesAFile(MemoryBackend):
    def destroy(self) -> None:
        super().destroy()
        (Path(self._directory) / "left").touch()


class LeaksADescriptor(MemoryBackend):
    def __init__(self, directory: Path, stores: Any, **options: Any) -> None:
        super().__init__(directory, stores, **options)
        LEAKED.append(os.open(directory, os.O_RDONLY))


class KnowsItsVersionAfterClose(MemoryBackend):
    def version(self) -> str | None:
        return None if self._contents is None else super().version()


class TakesNamesForTheSame(MemoryBackend):
    """Ignores the case of names."""

    def __init__(self, directory: Path, stores: Any, **options: Any) -> None:
        super().__init__(directory, list({store.lower() for store in stores}), **options)

    def get(self, store: str, key: bytes) -> Any:
        return super().get(store.lower(), key)

    def range(self, store: str, *args: Any, **options: Any) -> Any:
        return super().range(store.lower(), *args, **options)

    def approximate_count(self, store: str) -> int:
        return super().approximate_count(store.lower())

    def write(self, changes: Any, previous: str | None, version: str) -> None:
        super().write({store.lower(): rows for store, rows in changes.items()}, previous, version)


class BelongsToItsThread(MemoryBackend):
    """As objects of sqlite3 do by default."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._thread = threading.current_thread()

    def range(self, *args: Any, **options: Any) -> Any:
        assert threading.current_thread() is self._thread, "made in another thread"
        return super().range(*args, **options)


LEAKED: list[int] = planted.OPENED

IN_PROCESS: list[tuple[Any, ...]] = [
    (GetsABytearray, "test_what_is_returned_has_its_type", "get.* must return bytes"),
    (YieldsBytearrays, "test_what_is_returned_has_its_type", "range must yield bytes"),
    (CountsInFloats, "test_what_is_returned_has_its_type", "must return an int"),
    (LeavesAFile, "test_destroying_leaves_no_files", "destroy must delete"),
    (LeaksADescriptor, "test_what_is_closed_frees_descriptors", "close must free"),
    (TakesNamesForTheSame, "test_any_name_that_a_store_may_have", "mixed up with another"),
    (BelongsToItsThread, "test_it_is_opened_and_filled_in_another_thread_than_it_is_used_in", "another thread"),
    (KnowsItsVersionAfterClose, "test_closing", "DID NOT RAISE"),
    (
        planted.RemembersItsVersionInMemory,
        "test_two_that_have_it_open_in_one_process",
        "StaleStoreError.*had written v2",
    ),
    (planted.OneCursorForAll, "test_iterators_do_not_share_a_place", "an iterator of 'first'"),
    (planted.CountsPutsAndDeletions, "test_counts_of_stores_that_were_emptied", "approximate_count is 0 only if"),
    (planted.ViewsInTheOrderOfWrites, "test_a_view_has_every_key_in_order", "every entry in key order"),
    (planted.ViewsWithoutEmptyValues, "test_a_view_has_every_key_in_order", "every entry in key order"),
    (planted.ViewsThatGetWhatIsWrittenLater, "test_a_view_has_every_key_in_order", "from a view of"),
    (planted.ViewsWithTheEndOfARange, "test_a_view_has_every_key_in_order", "of start <= key < end"),
    (planted.ViewsThatAreReadOnce, "test_a_view_stays_as_it_is", "read twice"),
    (planted.ViewsAtALaterVersion, "test_a_view_stays_as_it_is", "a view shows the version"),
    (planted.ViewsThatKeepADescriptor, "test_what_is_closed_frees_descriptors", "close of a view must free"),
    (planted.RefusalsThatKeepADescriptor, "test_what_is_closed_frees_descriptors", "a refused write must free"),
    (planted.LosesTheLastOfAThousand, "test_writes_of_thousands_of_rows", "a write of 1000 rows"),
    (planted.DeletesSomeThousandsAtMost, "test_writes_of_thousands_of_rows", "too many variables"),
    (planted.LengthsInTwoBytes, "test_any_byte_and_any_length_of_a_value", "whose value has 65536 bytes"),
    (planted.AMarkForWhatIsDeleted, "test_any_byte_and_any_length_of_a_value", "a write of every byte"),
    (planted.TakesTheChanges, "test_a_write_changes_nothing_of_what_it_is_given", "write must not change"),
    (planted.OneStateForAName, "test_directories_are_apart", "beside others"),
    (planted.NeverForgetsWhatItGot, "test_many_small_writes", "get returns what the last write left"),
]

FEW, MANY, LARGE = {"rows": 4}, {"rows": 12_000}, {"rows": 40}
OPEN, FIRST = {"action": "open"}, {"action": "first write"}
BETWEEN_PROCESSES: list[tuple[Any, ...]] = [
    (writes.VersionFirst, "test_a_process_killed_inside_write", "step .* of write: at version .* in one atomic", FEW),
    (writes.VersionLast, "test_a_process_killed_inside_write", "step .* of write: at version .* in one atomic", FEW),
    (writes.RowByRow, "test_a_process_killed_inside_write", "step .* of write: at version .* in one atomic", FEW),
    (writes.StoreByStore, "test_a_process_killed_inside_write", "step .* of write: at version .* in one atomic", FEW),
    (writes.LargeInParts, "test_a_process_killed_inside_write", "rows that do not belong to it", LARGE),
    (writes.KeepsItsLog, "test_files_do_not_grow_while_it_is_open", "files must not grow while a backend is open"),
    (writes.Forgetful, "test_a_process_killed_inside_write", "found version", FEW),
    (writes.ReaderThatWrites, "test_a_reader_in_another_process", "must raise StoreError: written"),
    (writes.ReaderOfTheFirstCommit, "test_a_reader_in_another_process", "sees the last commit, v2"),
    (planted.ThousandRowsAtATime, "test_a_process_killed_inside_write", "rows that do not belong to it", MANY),
    (planted.LargeWritesInPlace, "test_a_process_killed_inside_write", "must open, read and write, and raised", MANY),
    (planted.VersionInASecondFile, "test_a_process_killed_inside_write", "rows that do not belong to it", FEW),
    (planted.DeletesInASecondStep, "test_a_process_killed_inside_write", "rows that do not belong to it", FEW),
    (planted.KeepsItsLock, "test_a_process_killed_inside_write", "raised StoreLockedError", FEW),
    (planted.MakesItsFileAnew, "test_a_process_killed_inside_write", "raised FileExistsError", FEW),
    (planted.AppendsBehindWhatWasTorn, "test_a_process_killed_inside_write", "must open, read and write", FEW),
    (planted.NotesItsVersionBeside, "test_a_damaged_side_file", "trusted\\(\\) is True", {}),
    (planted.TrustsACleanCloseOnly, "test_a_process_killed_inside_write", "a killed process damages nothing", FEW),
    (planted.FirstWriteInTwoSteps, "test_a_process_killed_in_a_new_directory", "rows that do not belong to it", FIRST),
    (planted.MarksWhatItOpened, "test_a_process_killed_in_a_new_directory", "unknown format", OPEN),
    (planted.RepairsInPlace, "test_a_process_killed_while_it_opens_after_a_kill", "found version None"),
    (planted.EmptiesBeforeItIsDestroyed, "test_a_process_killed_while_it_ends", "do not belong", {"action": "destroy"}),
    (planted.CompactsWhenItIsClosed, "test_a_process_killed_while_it_ends", "must open, read", {"action": "close"}),
    (planted.RemembersItsVersion, "test_a_zombie_at_an_old_version_is_refused", "found 'written'"),
    (planted.RefusesWithAnotherError, "test_a_zombie_at_an_old_version_is_refused", "found 'StoreError: .*changed"),
    (planted.NeverRefusesTheSameVersion, "test_a_zombie_at_an_old_version_is_refused", "found 'written'"),
    (planted.WritesWhatWasRebuilt, "test_a_zombie_of_a_directory_that_was_rebuilt_is_refused", "found .written."),
    (planted.ChecksBeforeItLocks, "test_of_two_writers_one_wins", "'written', 'written'"),
    (planted.NeverLocks, "test_of_two_writers_one_wins", "'written', 'written'"),
    (planted.LocksEachStep, "test_of_two_writers_one_wins", "'written', 'written'"),
    (planted.WaitsForEver, "test_of_two_writers_one_wins", "for a bounded time"),
    (planted.LockedAfterARefusal, "test_a_stale_write_changes_nothing", "a transaction is open"),
    (planted.CutsVersions, "test_versions_of_real_length", "version must return what write recorded"),
    (planted.NumbersForVersions, "test_versions_of_real_length", "version must return what write recorded"),
    (planted.ComparesCounters, "test_versions_of_real_length", "it raised nothing"),
    (planted.IgnoresTheCaseOfVersions, "test_versions_of_real_length", "it raised nothing"),
    (planted.LooksUpWhatItYields, "test_deletions_ahead_of_an_iterator", "KeyError", {"reverse": False, "ahead": 7}),
    (planted.PagesByPosition, "test_deletions_ahead_of_an_iterator", "are missing", {"reverse": False, "ahead": 40}),
    (planted.LooksForTheLastKeyOfAPage, "test_deletions_ahead_of_an_iterator", "not in list",
     {"reverse": True, "ahead": 2000}),
    (planted.ForgetsABoundAfterAPage, "test_many_entries", "reversed, a range of"),
    (planted.CountsWithoutDeletions, "test_counts_of_stores_that_were_emptied", "approximate_count is 0 only if"),
    (planted.IgnoresAFullDisk, "test_a_full_disk", "version"),
    (planted.RaisesWhatTheSystemRaises, "test_a_full_disk", "must raise StoreError, and raised OSError"),
    (planted.TearsItsFileOnAFullDisk, "test_a_full_disk", "changes nothing: version"),
    (planted.ReadersMakeTheFile, "test_a_reader_where_nothing_is_yet", "finds nothing, or raises StoreError"),
    (planted.ReadersWithoutAFile, "test_a_reader_where_nothing_is_yet", "FileNotFoundError"),
    (planted.ReadersKnowAllStores, "test_a_reader_where_nothing_is_yet", "KeyError"),
    (planted.ReadersOfNothingStayThere, "test_a_reader_where_nothing_is_yet", "before the first commit reads it"),
    (planted.DropsStoresThatAreLeftOut, "test_stores_may_be_added_and_left_out", "opened with a store that was left"),
]  # fmt: skip


def suite_of(backend: Any, **settings: Any) -> Any:
    return type("Suite", (StoreBackendContract,), {"open": staticmethod(backend), "longest_wait": 2, **settings})()


def case(backend: Any, test: str, rule: str, arguments: Any = None) -> Any:
    return pytest.param(backend, test, rule, arguments or {}, id=backend.__name__)


@pytest.mark.parametrize(("backend", "test", "rule", "arguments"), [case(*each) for each in IN_PROCESS])
def test_a_planted_bug_is_found(backend: Any, test: str, rule: str, arguments: Any, tmp_path: Path) -> None:
    try:
        with pytest.raises((Exception, pytest.fail.Exception), match=rule):
            getattr(suite_of(backend, in_one_process=True), test)(tmp_path)
    finally:
        while LEAKED:
            os.close(LEAKED.pop())


@pytest.mark.parametrize(("backend", "test", "rule", "arguments"), [case(*each) for each in BETWEEN_PROCESSES])
def test_a_planted_bug_between_processes_is_found(
    backend: Any, test: str, rule: str, arguments: Any, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=rule):
        getattr(suite_of(backend), test)(tmp_path, **arguments)


class TestRight(StoreBackendContract):
    """The backend of which most planted ones are a copy with one wrong line."""

    open = staticmethod(planted.FileBackend)
    examples = 3


def test_the_right_one_that_appends(tmp_path: Path) -> None:
    suite_of(planted.AppendingBackend).test_a_process_killed_inside_write(tmp_path, 4)


def test_a_backend_that_no_other_process_can_import_is_refused(tmp_path: Path) -> None:
    suite = type("Suite", (StoreBackendContract,), {"open": staticmethod(lambda *args: MemoryBackend(*args))})()
    with pytest.raises(AssertionError, match="cannot import what it is to run: .*not a lambda"):
        suite.test_a_process_killed_inside_write(tmp_path, 4)
