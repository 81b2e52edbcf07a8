"""The contract suite for logs makes a second call between the steps of one, and damages files: it finds each bug."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock

from . import planted_log_places as places
from . import planted_log_races as planted
from .planted_logs import OnDisk

PLANTED: list[tuple[Any, str, str, str]] = [
    (planted.ReadsBeforeFence, "opens", "commits", "process"),
    (planted.ChecksBeforeItCommits, "commits", "opens", "process"),
    (planted.ChecksBeforeItCommits, "commits", "forgets", "thread"),
    (planted.CommitsAfterItsOutputs, "commits", "opens", "process"),
    (planted.PositionsAfterForgetting, "sets positions", "looks", "process"),
    (planted.CountsInTwoSteps, "counts", "notes", "process"),
    (planted.CreatesWhatItSawMissing, "creates", "creates", "process"),
    (planted.EnsuresOnce, "ensures", "ensures", "process"),
    (planted.HandsOverInAField, "appends", "appends", "thread"),
    (planted.TakesWhatItSawFree, "leads", "leads", "process"),
    (planted.RenewsBeforeItNotes, "notes late", "leads late", "process"),
    (planted.ReleasesWhatItHad, "releases late", "leads late", "process"),
]


@pytest.mark.parametrize(
    ("log", "held", "other", "by"), [pytest.param(*each, id=f"{each[0].__name__}-{each[2]}") for each in PLANTED]
)
def test_a_planted_bug_is_found(log: Any, held: str, other: str, by: str, tmp_path: Path) -> None:
    suite = OnDisk()
    suite.log_class = log
    with pytest.raises((Exception, pytest.fail.Exception), match="two calls at once must end as one after the other"):
        suite.test_two_calls_at_once(tmp_path, ManualClock(1_000_000), held, other, f"another {by}")


DAMAGED: list[tuple[Any, str, dict[str, str], str]] = [
    (places.NotesInFiles, "test_damaged_files", {"damage": "cut"}, "application.note was cut: what is read"),
    (places.NamesNoDamage, "test_damaged_files", {"damage": "cut"}, "names the file, directory"),
    (places.BeginsAnewWhereDamaged, "test_damaged_files", {"damage": "cut"}, "data.mdb was cut: what is read"),
    (places.SkipsWhatIsDamaged, "test_a_flipped_bit_of_a_record", {}, "a bit of a record's value was flipped"),
    (places.NotesFromThere, "test_the_working_directory_changes", {}, "."),
]


@pytest.mark.parametrize(
    ("log", "test", "arguments", "rule"), [pytest.param(*each, id=each[0].__name__) for each in DAMAGED]
)
def test_what_damage_shows_is_found(log: Any, test: str, arguments: Any, rule: str, tmp_path: Path) -> None:
    suite = OnDisk()
    suite.log_class = log
    with pytest.raises((Exception, pytest.fail.Exception), match=rule):
        getattr(suite, test)(tmp_path, ManualClock(1_000_000), **arguments)
