"""The contract suite for logs makes a second call between the steps of one: it finds each of these planted bugs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock

from . import planted_log_races as planted
from .planted_logs import OnDisk

PLANTED: list[tuple[Any, str, str, str]] = [
    (planted.ReadsBeforeFence, "opens", "commits", "process"),
    (planted.ChecksBeforeItCommits, "commits", "opens", "process"),
    (planted.ChecksBeforeItCommits, "commits", "forgets", "thread"),
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
