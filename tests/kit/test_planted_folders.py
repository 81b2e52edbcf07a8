"""The contract suite for changelogs varies what is around them: it finds each of these planted bugs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.testing.contracts.changelog import ChangelogContract

from . import planted_changelog_calls as calls
from . import planted_folders as planted


class TestRight(ChangelogContract):
    """The changelog of which the planted ones are a copy with one wrong line."""

    changelog = planted.FolderChangelog
    examples = 5
    kills = 12


CRASH, LOOKED = "test_a_crash_of_the_machine_loses_no_name", "test_an_object_that_looked_sees_what_others_write"
LEFT, LARGE = "test_nothing_is_left_behind", "test_a_large_snapshot_is_never_in_memory"
DAMAGE, KILLED = "test_damage_is_an_error", "test_a_process_killed_while_it_changes_the_changelog"
RACE, AT_ONCE = "test_two_calls_at_once", "two calls at once must end as one after the other"


def raced(held: str, other: str, by: str = "another process") -> dict[str, str]:
    """Return the arguments of a test of two calls."""
    return {"held": held, "other": other, "by": by}


PLANTED: list[tuple[Any, ...]] = [
    (planted.RenamesBeforeItSyncs, CRASH, "got its name before its content was synced"),
    (planted.SyncsNoFolder, CRASH, "new in its folder, which was not synced"),
    (planted.SyncsItsOwnFolderOnly, CRASH, "is new in its folder"),
    (planted.SyncsDeltasOnly, CRASH, "got its name before its content was synced"),
    (planted.ListsOnce, LOOKED, "an object that was opened", {"beside_writer": False}),
    (planted.WeighsWhatItWrote, "test_processes_that_append_once_ask_for_a_snapshot", "none does"),
    (planted.OneReaderAtATime, "test_a_large_snapshot_comes_in_steps", "by turns|already executing|shorter"),
    (planted.TripsOverOtherFiles, "test_other_files_are_no_part_of_it", "files of others"),
    (planted.WritesInTheTemporaryDirectory, LEFT, "left in the temporary directory"),
    (planted.DestroysByMovingAway, LEFT, "destroy deletes everything"),
    (planted.MeasuresAndLeaves, LEFT, "5 snapshots that failed"),
    (planted.NeverCleansWhatOthersLeft, KILLED, "there are .* files", {"action": "snapshot"}),
    (planted.DestroysDeltasAndSnapshots, KILLED, "has left .* files", {"action": "snapshot"}),
    (planted.OpensForEachFailure, "test_closing_frees_descriptors", "calls that fail"),
    (planted.HoldsItsSnapshot, LARGE, "a snapshot of 24 MB"),
    (planted.ReadsTheWholeFile, LARGE, "a restore of 24 MB"),
    (planted.NamesNothing, DAMAGE, "must name the file", {"damage": "a flipped bit"}),
    (planted.DestroysWhatItCanRead, DAMAGE, "destroy and a new chain must work", {"damage": "a flipped bit"}),
    (planted.EndsAtAnEmptyRow, "test_any_rows_of_any_store", "the state at 1-v", {"way": "a snapshot"}),
    (planted.CutsLongKeys, "test_any_rows_of_any_store", "the state at 0-v", {"way": "deltas"}),
    (calls.CleansWhatIsWritten, RACE, AT_ONCE, raced("snapshots", "cleans")),
    (calls.CleansWhatIsWritten, RACE, AT_ONCE, raced("appends", "cleans")),
    (calls.CleansTheTemporaryOfOthers, RACE, AT_ONCE, raced("snapshots", "cleans")),
    (calls.OneAsideForAll, RACE, AT_ONCE, raced("snapshots", "snapshots")),
    (calls.NamesInAField, RACE, AT_ONCE, raced("snapshots", "appends", "another thread")),
    (calls.DestroysFileByFile, RACE, AT_ONCE, raced("destroys", "appends")),
    (calls.BeginsWhereSomethingIsMissing, "test_a_changelog_keeps_commits", "begins nothing"),
    (calls.FolderFromThere, "test_the_working_directory_changes", "."),
    (calls.DestroysNamesThatBeginAlike, "test_tasks_and_applications_are_apart", "."),
    (calls.GraceInSeconds, "test_nothing_is_deleted_within_the_grace_period", "2-v|0-v"),
    (calls.CleansTheSameCounter, "test_what_is_as_new_as_the_last_version_stays", "2-other stays"),
    (calls.AppendsBlindly, "test_a_file_is_not_as_it_was_left", "append returned", {"damage": "cut"}),
    (calls.AppendsBlindly, "test_a_file_is_not_as_it_was_left", "append returned", {"damage": "longer"}),
]


@pytest.mark.parametrize(
    ("changelog", "test", "rule", "arguments"),
    [pytest.param(*each[:3], each[3] if len(each) > 3 else {}, id=each[0].__name__) for each in PLANTED],
)
def test_a_planted_bug_is_found(
    changelog: Any, test: str, rule: str, arguments: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = type("Suite", (ChangelogContract,), {"changelog": changelog, "kills": 12})()
    if test == LEFT:
        arguments = {"monkeypatch": monkeypatch}
    with pytest.raises((Exception, pytest.fail.Exception), match=rule):
        getattr(suite, test)(tmp_path, **arguments)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while planted.OPENED:
        os.close(planted.OPENED.pop())
