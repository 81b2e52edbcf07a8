"""The contract suite for logs varies what is around them: it finds each of these planted bugs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock

from . import planted_log_places as planted

ENDS, TOMBSTONES, PURGE = (
    "test_records_at_the_ends_of_ranges",
    "test_a_fetch_of_tombstones_only",
    "test_a_purge_beyond_the_end",
)
LARGE, LOOKED = "test_large_positions_and_notes", "test_an_object_that_looked_sees_what_others_write"
CRASH, FREES = "test_a_crash_of_the_machine_loses_no_name", "test_closing_frees_what_was_opened"
PLANTED: list[tuple[Any, str, str]] = [
    (planted.TombstonesHaveNoSize, TOMBSTONES, "returned 40000 records"),
    (planted.SkipsTombstones, TOMBSTONES, "returned 0 records"),
    (planted.PurgesAhead, PURGE, "the start is behind"),
    (planted.PurgesAllPartitions, PURGE, "records of another partition"),
    (planted.CutsLongKeys, ENDS, "records of partition 0"),
    (planted.CutsLongHeaders, ENDS, "records of partition 0"),
    (planted.EmptyHeadersAreNull, ENDS, "records of partition 2"),
    (planted.SomeThousandInACommit, "test_many_records_in_one_commit", "of a commit of 40,000"),
    (planted.PositionsOfFloats, LARGE, "a position of 62 bits"),
    (planted.CutsNotes, LARGE, "a note of 102400 bytes"),
    (planted.NotesEndBeforeZeros, "test_notes_of_any_bytes", "a note of any bytes"),
    (planted.EmptyNotesAreNone, "test_notes_of_any_bytes", "before it was changed"),
    (planted.NamesIgnoreCase, "test_topics_that_are_almost_the_same", "already exists|exists"),
    (planted.EnsuresPartitions, "test_topics_that_are_almost_the_same", "was there before ensure_topic"),
    (planted.TimesInTheOrderOfNames, "test_times_of_several_partitions", "offsets for the time"),
    (planted.TopicsOnce, LOOKED, "a topic"),
    (planted.NotesOnce, LOOKED, "a note"),
    (planted.CommitsOnce, LOOKED, "the last commit"),
    (planted.EndsOnce, LOOKED, "."),
    (planted.KeepsADescriptor, FREES, "must free all descriptors"),
    (planted.KeepsAThread, FREES, "must end threads"),
    (planted.DeletesNames, "test_what_is_deleted_takes_no_room", "take room"),
    (planted.NotesRenamedBeforeTheyAreSynced, CRASH, "got its name before its content"),
    (planted.NamesOfNotesAreNotSynced, CRASH, "is new in its folder"),
]


@pytest.mark.parametrize(("log", "test", "rule"), [pytest.param(*each, id=each[0].__name__) for each in PLANTED])
def test_a_planted_bug_is_found(log: Any, test: str, rule: str, tmp_path: Path) -> None:
    with pytest.raises((Exception, pytest.fail.Exception), match=rule):
        run(log, test, tmp_path)


def test_a_right_log_that_keeps_files_is_not_accused(tmp_path: Path) -> None:
    run(planted.NotesInFiles, CRASH, tmp_path)


def run(log: Any, test: str, directory: Path) -> None:
    """Run a test of the suite over a log."""
    suite, clock = planted.suite_of(log)(), ManualClock(1_000_000)
    method = getattr(suite, test)
    takes = inspect.signature(method).parameters
    given = {name: value for name, value in {"tmp_path": directory, "clock": clock}.items() if name in takes}
    if "log" in takes:
        given["log"] = planted.opened(suite, directory, clock)
    method(**given)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    planted.ENDED.set()
    planted.ENDED.clear()
    while planted.OPENED:
        os.close(planted.OPENED.pop())
