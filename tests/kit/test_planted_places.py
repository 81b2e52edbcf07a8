"""The contract suite for store backends finds mistakes that only other surroundings show, by the test of each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.stores.memory import MemoryBackend

from . import planted_places as planted
from . import planted_store_calls as calls
from .planted_backends import AppendingBackend
from .test_planted_backends import case, suite_of

REBUILT = "test_a_zombie_of_a_directory_that_was_rebuilt_is_refused"
LARGE = "test_a_reader_beside_a_large_write"
PLACES: list[tuple[Any, ...]] = [
    (planted.DestroysWhatItOpened, "test_destroying_where_some_stores_are_named", "and left .*state"),
    (planted.ReadersOfTheFirstLook, "test_a_reader_looks_again", "a reader of a store that was made since it looked"),
    (planted.ReadersByPosition, "test_a_reader_that_names_some_stores", "opened with the stores"),
    (planted.ReadersUntilTheNextVersion, "test_a_reader_looks_again", "a write that stayed at its version"),
    (planted.ReadersLockWhileTheyScan, "test_a_reader_is_half_through", "must not wait for it"),
    (planted.ReadersLookUpWhatTheyYield, "test_a_reader_is_half_through", "its iterator must go on.*KeyError"),
    (planted.ReadersLeaveAFile, "test_a_reader_is_killed", "left .*reader-"),
    (planted.OpensBehindALock, "test_a_process_stops_while_it_opens", "only for a bounded time"),
    (planted.AFileOfEachProcess, "test_a_process_killed_inside_write", "destroy, after .*left", {"rows": 4}),
    (planted.WritesWhatWasRemoved, "test_a_zombie_of_a_directory_that_was_removed_is_refused", "were deleted meanwhile",
     {"how": "deleted"}),
    (planted.ViewsUntilItWritesItself, "test_a_reader_looks_again", "a reader's view stays as it is"),
    (planted.DestroyKeepsADescriptor, "test_what_is_closed_frees_descriptors", "destroy must free all"),
    (planted.ReadersOfNothingKeepADescriptor, "test_what_is_closed_frees_descriptors", "a reader that finds nothing"),
    (planted.SortsInATemporaryFile, "test_nothing_is_left_around", "in the temporary directory"),
    (planted.WritesInTheWorkingDirectory, "test_nothing_is_left_around", "in the working directory"),
    (planted.LocksBesideItsDirectory, "test_nothing_is_left_around", "beside its directory"),
    (planted.KeepsAThread, "test_nothing_is_left_around", "must end the backend's threads"),
    (planted.NotesEachOpening, "test_files_do_not_grow", "must leave no file of its own"),
    (AppendingBackend, "test_files_do_not_grow", "files must not grow"),
    (planted.KeepsWhatIsNotThere, "test_memory_does_not_grow", "a get of a key that is not there must leave nothing"),
    (planted.KeepsEachState, "test_memory_does_not_grow", "a write of rows that are there must leave nothing"),
    (planted.CutsLongKeys, "test_a_key_that_may_be_too_long", "kept whole, or refused"),
    (planted.LengthsInThreeBytes, "test_a_large_value", "a value of 18 MiB"),
    (planted.FewerThan32768Rows, "test_writes_of_thousands_of_rows", "a write of 40000 rows"),
    (planted.NumbersForKeysOfEightBytes, "test_the_order_of_keys", "numbers in 8 bytes"),
    (planted.TextForKeys, "test_the_order_of_keys", "keys of one and two bytes, in order"),
    (planted.TheNewestByTheClock, "test_a_clock_that_is_set_back", "by a clock that was set back"),
    (planted.ReadsAsFarAsItGoes, "test_damaged_files", "state was cut, and trusted.. is True", {"damage": "cut"}),
    (planted.RaisesWhatPickleRaises, "test_damaged_files", "expected StoreError with the directory",
     {"damage": "cut"}),
    (calls.DestroysASuccessor, REBUILT, "has destroyed what it had opened"),
    (calls.DestroysWhatIsThere, REBUILT, "has destroyed what it had opened"),
    (calls.LockedWhereItIsStale, "test_of_two_writers_one_wins", "found 'StoreLockedError', expected 'StaleStoreErr"),
    (calls.RelativePath, "test_the_working_directory_changes", "removed or rebuilt"),
    (calls.RelativeToDestroy, "test_the_working_directory_changes", "destroyed, when the working directory"),
    (calls.RowsInPortions, LARGE, "sees all of it or nothing"),
    (calls.BytesInPortions, LARGE, "sees all of it or nothing"),
    (calls.NeverSyncs, "test_a_crash_of_the_machine", "took a part of what was not synced"),
    (calls.StateOfTwoFiles, "test_a_crash_of_the_machine", "took a part of what was not synced"),
    (calls.KeepsWhatIsAsLong, "test_a_value_is_replaced_by_one_as_long", "4096 bytes was replaced"),
    (calls.ReadersMakeAFile, "test_a_reader_where_nothing_is_yet", "makes no files, and made .'journal'"),
    (calls.StoreByStore, LARGE, "sees all of it or nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("backend", "test", "rule", "arguments"), [case(*each) for each in PLACES])
def test_a_planted_mistake_is_found(
    backend: Any,
    test: str,
    rule: str,
    arguments: Any,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("working"))  # some leave files there
    planted.STOP.clear()
    suite = suite_of(backend, in_one_process=issubclass(backend, MemoryBackend))
    try:
        with pytest.raises((Exception, pytest.fail.Exception), match=rule):
            getattr(suite, test)(tmp_path, **arguments)
    finally:
        planted.STOP.set()
        while planted.OPENED:
            os.close(planted.OPENED.pop())


def test_the_right_one_with_views(tmp_path: Path) -> None:
    suite_of(planted.WithViews).test_a_reader_looks_again(tmp_path)
