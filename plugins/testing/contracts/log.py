"""The tests that every log must pass; subclass `LogContract` to run them over yours."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from .log_commits import CommitTests
from .log_history import History
from .log_leases import LeaseTests
from .log_records import RecordTests
from .log_topics import TopicTests


class LogContract(TopicTests, RecordTests, CommitTests, LeaseTests):
    """The contract of a log, as tests; run them in a test class of yours.

    >>> from penstock.plugins.logs.local import LocalLog
    >>> class TestLocal(LogContract):
    ...     def open_log(self, directory, clock):
    ...         return LocalLog(str(directory / "log"), clock=clock)

    Needs pytest and hypothesis (`pip install 'penstock[testing]'`).
    """

    def test_any_history(self) -> None:
        """Records, positions and versions are as committed, whatever was fenced, refused or re-opened meanwhile."""
        contract = self

        class OverThisLog(History):
            def __init__(self) -> None:
                super().__init__(contract)

        run_state_machine_as_test(
            OverThisLog,
            settings=settings(
                max_examples=self.examples,
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
