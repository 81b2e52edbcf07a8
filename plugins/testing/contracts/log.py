"""The tests that every log must pass; subclass `LogContract` to run them over yours."""

from __future__ import annotations

from .histories import run_histories
from .log_commits import CommitTests
from .log_damage import DamageTests
from .log_following import FollowingTests
from .log_history import History
from .log_leases import LeaseTests
from .log_places import PlaceTests
from .log_races import RaceTests
from .log_records import RecordTests
from .log_topics import TopicTests


class LogContract(TopicTests, RecordTests, FollowingTests, CommitTests, LeaseTests, PlaceTests, DamageTests, RaceTests):
    """The contract of a log, as tests; run them in a test class of yours.

    >>> from penstock.plugins.logs.local import LocalLog
    >>> class TestLocal(LogContract):
    ...     def open_log(self, directory, clock):
    ...         return LocalLog(str(directory / "log"), clock=clock)

    Needs pytest and hypothesis (`pip install 'penstock-streams[testing]'`).
    """

    def test_any_history(self) -> None:
        """Records, positions and versions are as committed, whatever was fenced, refused or re-opened meanwhile."""
        run_histories(lambda: History(self), examples=self.examples, steps=25)
