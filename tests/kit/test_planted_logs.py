"""The contract suite for logs finds each of these planted bugs, by the test that names the rule."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock

from . import planted_logs as planted

COMMIT, CHANGE = "test_a_process_killed_while_it_commits", "test_a_process_killed_while_it_changes_the_log"
REPLACED, REAL_SIZE = "test_whoever_was_replaced_is_fenced", "test_commits_of_real_size"
PLANTED: list[tuple[Any, ...]] = [
    (planted.ZombiesMoveThePositions, REPLACED, "."),
    (planted.ZombiesProduce, REPLACED, "."),
    (planted.FencesAtTheFirstCommit, REPLACED, "."),
    (planted.ProducesUntilAnError, "test_an_output_without_a_topic_changes_nothing", "."),
    (planted.CommitsAgainAfterClose, "test_a_closed_committer_commits_nothing", "."),
    (planted.KeepsItsFirstCommit, "test_a_commit_is_one_step", "."),
    (planted.LastingCommitsEndWithTheirTool, "test_what_a_tool_has_committed_is_kept", "."),
    (planted.FencesToReadACommit, "test_the_last_commit_is_read_without_the_fence", "."),
    (planted.FencesTheTasksOfOthers, "test_tasks_and_applications_do_not_fence_each_other", "."),
    (planted.CutsEngineStates, REAL_SIZE, "engine state"),
    (planted.EngineStatesAreText, REAL_SIZE, "engine state"),
    (planted.PositionsInFourBytes, REAL_SIZE, "positions"),
    (planted.SomePositionsAtMost, REAL_SIZE, "positions"),
    (planted.CutsVersions, REAL_SIZE, "version"),
    (planted.ForgetsWithoutAFence, "test_forgetting_an_application", "."),
    (planted.ForgetsNoNotes, "test_forgetting_an_application", "."),
    (planted.AddsPositionsToThoseBefore, "test_an_application_is_told_where_to_begin", "."),
    (planted.BeginsBeforeTheEnd, "test_positions_at_the_end_are_behind_every_commit", "behind what was committed"),
    (planted.NotesOfAllApplications, "test_notes_of_an_application", "."),
    (planted.ChangesNotesInTwoSteps, "test_no_change_of_a_note_is_lost", "."),
    (planted.TombstonesAreEmpty, "test_a_record_keeps_every_part", "."),
    (planted.HeadersOfTheFirst, "test_a_record_keeps_every_part", "."),
    (planted.HeadersIfTheFirstHasSome, "test_a_record_keeps_every_part", "."),
    (planted.FetchesBeyondTheEnd, "test_fetch_stops_before_the_end", "."),
    (planted.FetchesNothingThatIsTooLarge, "test_fetch_is_bounded_and_goes_on", "."),
    (planted.NothingOutOfRange, "test_an_offset_out_of_range_is_named_with_the_range", "."),
    (planted.OffsetsAfterATime, "test_the_offset_of_a_time", "."),
    (planted.PurgesWhatWasMadeAgain, "test_a_purge_of_a_topic_that_was_made_again_deletes_nothing", "."),
    (planted.NullKeysToOnePartition, "test_records_without_a_key_are_spread", "."),
    (planted.OutputsBeforePositions, COMMIT, "killed at step .* of commit.*outputs in 'out'"),
    (planted.PositionsBeforeOutputs, COMMIT, "killed at step .* of commit.*outputs in '"),
    (planted.OneTopicInACommit, COMMIT, "killed at step .* of commit.*outputs in 'side'"),
    (planted.EngineStateInASecondStep, COMMIT, "killed at step .* of commit: found the commit"),
    (planted.EpochsEndWithTheProcess, "test_an_epoch_outlives_its_process", "others have replaced"),
    (planted.LeasesByName, "test_an_expired_lease_is_lost_to_the_next", "its predecessor 'driver one' cannot release"),
    (planted.LeasesAddUp, "test_an_expired_lease_is_lost_to_the_next", "may take a lease of 10 s"),
    (planted.LeasesWriteLate, "test_a_note_under_a_lost_lease_changes_nothing", "DID NOT RAISE"),
    (planted.LeasesEndWithTheProcess, "test_a_lease_is_seen_by_other_processes", "DID NOT RAISE"),
    (planted.NeverSyncs, "test_what_has_returned_is_on_disk", "must be durable", {"action": "commit"}),
    (planted.NeverSyncs, "test_what_has_returned_is_on_disk", "must be durable", {"action": "append"}),
    (planted.AppendsWithTheNext, CHANGE, "an append is whole or nothing", {"action": "append"}),
    (planted.AppendsInPortions, CHANGE, "an append is whole or nothing", {"action": "append"}),
    (planted.PositionsInTwoSteps, CHANGE, "found positions", {"action": "set_positions"}),
    (planted.IgnoresAFullDisk, "test_a_commit_on_a_full_disk", "no room on the disk"),
    (planted.RaisesWhatTheSystemRaises, "test_a_commit_on_a_full_disk", "must raise LogError"),
]


@pytest.mark.parametrize(
    ("log", "test", "rule", "arguments"),
    [pytest.param(*each[:3], each[3] if len(each) > 3 else {}, id=each[0].__name__) for each in PLANTED],
)
def test_a_planted_bug_is_found(log: Any, test: str, rule: str, arguments: Any, tmp_path: Path) -> None:
    suite, clock = planted.suite_of(log)(), ManualClock(1_000_000)
    method = getattr(suite, test)
    takes = inspect.signature(method).parameters
    given = dict(arguments)
    given |= {name: value for name, value in {"tmp_path": tmp_path, "clock": clock}.items() if name in takes}
    if "log" in takes:
        given["log"] = suite.open_log(tmp_path, clock)
    with pytest.raises((Exception, pytest.fail.Exception), match=rule):
        method(**given)
