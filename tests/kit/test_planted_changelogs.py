"""The contract suite for changelogs finds each of these planted bugs, by the test that names the rule."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.testing.contracts.changelog import ChangelogContract
from penstock.plugins.testing.contracts.log_changelog import LogChangelogContract

from . import planted_changelogs as planted

FROZEN = "test_a_frozen_process_deletes_nothing_that_its_successor_needs"
KILLED = "test_a_process_killed_while_it_changes_the_changelog"
APPEND, SNAPSHOT, CLEAN = ({"action": each} for each in ("append", "snapshot", "clean"))
ROWS = {"way": "deltas"}
PLANTED: list[tuple[Any, ...]] = [
    (planted.DeletesWhateverItDoesNotNeed, FROZEN, "no way to version",
     {"frozen": "before its snapshot", "successor": "commits"}),
    (planted.DeletesWhateverItDoesNotNeed, FROZEN, "no way to version",
     {"frozen": "before its snapshot", "successor": "snapshots"}),
    (planted.DeletesWhateverItDoesNotNeed, FROZEN, "no way to version",
     {"frozen": "in its snapshot", "successor": "snapshots"}),
    (planted.NeverAsks, FROZEN, "no way to version", {"frozen": "before its snapshot", "successor": "starts anew"}),
    (planted.KeepsTheCallersRows, "test_what_is_given_is_not_kept", "whose changes its caller has cleared"),
    (planted.EmptyValuesAreDeletions, "test_any_rows_of_any_store", "the state at 0-v.*expected b''", ROWS),
    (planted.IgnoresTheCaseOfStores, "test_any_rows_of_any_store", "the state at 0-v", ROWS),
    (planted.SomeThousandRowsAtMost, "test_any_rows_of_any_store", "entries instead of", ROWS),
    (planted.CutsEngineStates, "test_commits_of_real_size", "engine state"),
    (planted.PositionsInFourBytes, "test_commits_of_real_size", "positions"),
    (planted.SplitsNamesOfPartitions, "test_commits_of_real_size", "positions"),
    (planted.ComparesPositionsAsText, "test_a_later_commit_of_a_version_is_kept", "with the highest positions"),
    (planted.ComparesTheHighestPosition, "test_a_later_commit_of_a_version_is_kept", "with the highest positions"),
    (planted.KeepsTheCommitBeforeTheSnapshot, "test_a_later_commit_of_a_version_is_kept", "of a snapshot's commit"),
    (planted.KeepsTheFirstCommit, "test_a_later_commit_of_a_version_is_kept", "with the highest positions"),
    (planted.ProvesTheNewest, "test_a_changelog_keeps_commits", "the newest delta proves nothing"),
    (planted.ProvesWhatIsNotThere, "test_a_changelog_keeps_commits", "a late one after `destroy`"),
    (planted.OneDeltaForEachCounter, "test_a_late_orphan_changes_nothing", "no way to version"),
    (planted.TakesAnyLowerCopy, "test_a_late_orphan_changes_nothing", "from 000000000001-z"),
    (planted.CleansWithoutGrace, "test_nothing_is_deleted_within_the_grace_period", "no way to version"),
    (planted.DestroysByPrefix, "test_tasks_and_applications_are_apart", "no way to version"),
    (planted.KeepsADescriptor, "test_closing_frees_descriptors", "close must free"),
    (planted.AppendsBehindWhatWasTorn, KILLED, "killed at step .* of append", APPEND),
    (planted.WritesWithTheNext, KILLED, "append: .*no way to version", APPEND),
    (planted.ForgetsDeltasBeforeItsSnapshot, KILLED, "killed at step .* of snapshot.*no way to version", SNAPSHOT),
    (planted.CleansInPlace, KILLED, "killed at step .* of clean.*no way to version", CLEAN),
    (planted.ChecksNothing, "test_damage_is_an_error", "damage must raise ChangelogError", {"damage": "a flipped bit"}),
    (planted.NeverSyncs, "test_an_append_is_on_disk_when_it_returns", "before it returns"),
    (planted.SyncsSnapshotsOnly, "test_an_append_is_on_disk_when_it_returns", "before it returns"),
    (planted.TearsItsFileOnAFullDisk, "test_a_full_disk", "no room on the disk"),
    (planted.IgnoresAFullDisk, "test_a_full_disk", "no room on the disk"),
    (planted.RaisesWhatTheSystemRaises, "test_a_full_disk", "must raise ChangelogError, and raised OSError"),
    (planted.BeginsWithoutAFile, "test_a_chain_with_a_gap_is_an_error_that_names_it_until_a_snapshot_mends_it",
     "RAISE"),
]  # fmt: skip


class TestRight(ChangelogContract):
    """The changelog of which many planted ones are a copy with one wrong line."""

    changelog = planted.FileChangelog
    examples = 5
    kills = 20
    test_its_size_is_that_of_its_state = None  # type: ignore[assignment]  # it only ever appends
    test_a_large_snapshot_is_never_in_memory = None  # type: ignore[assignment]  # its history is


@pytest.mark.parametrize(
    ("changelog", "test", "rule", "arguments"),
    [pytest.param(*each[:3], each[3] if len(each) > 3 else {}, id=each[0].__name__) for each in PLANTED],
)
def test_a_planted_bug_is_found(changelog: Any, test: str, rule: str, arguments: Any, tmp_path: Path) -> None:
    suite = type("Suite", (ChangelogContract,), {"changelog": changelog})()
    try:
        with pytest.raises((Exception, pytest.fail.Exception), match=rule):
            getattr(suite, test)(tmp_path, **arguments)
    finally:
        while planted.OPENED:
            os.close(planted.OPENED.pop())


IN_TOPICS: list[tuple[Any, str, str]] = [
    (planted.TombstonesAreEmpty, "test_records_are_those_of_the_task", "None for a deleted one"),
    (planted.GoesWhereKeysGo, "test_records_are_those_of_the_task", "go to partition 1"),
    (planted.SomeThousandRecordsAtMost, "test_any_rows_are_restored", "rows restored|the state at"),
    (planted.LargeValuesAreCut, "test_any_rows_are_restored", "rows restored|the state at"),
    (planted.CatchesUpWhateverWasSeen, "test_any_age_of_a_copy_leads_to_the_state", "was the last version 0.0 seconds"),
]


@pytest.mark.parametrize(("changelog", "test", "rule"), IN_TOPICS)
def test_a_planted_bug_in_topics_is_found(changelog: Any, test: str, rule: str) -> None:
    with pytest.raises(Exception, match=rule):
        getattr(type("Suite", (LogChangelogContract,), {"changelog": changelog})(), test)()
