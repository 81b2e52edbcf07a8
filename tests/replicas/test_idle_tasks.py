"""A copy in a topic's history follows a task that changes nothing for a night; one that was away is read afresh."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import Commit, ManualClock, SystemClock, World
from penstock.errors import LogError
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.copies import Replica, Standbys
from penstock.world import ThreadTicker

from .every_kind import Writer, application, content_of

HOURS = range(13)
REBUILDING = "rebuilding it from the changelog"


class Times:
    """The clocks of a machine: the test moves them."""

    def __init__(self) -> None:
        self.clock = ManualClock(SystemClock().now_ms())
        self.seconds = 0.0
        self.calls: list[Callable[[], object]] = []
        self.world = World(clock=self.clock, seconds=lambda: self.seconds, ticker=self._ticker, threads=Inline)

    def _ticker(self, name: str, seconds: float, call: Callable[[], object]) -> ThreadTicker:
        self.calls.append(call)
        return ThreadTicker(name, 86_400.0, lambda: None)

    def advance(self, hours: int, *, is_suspended: bool = False, is_set_back: bool = False) -> None:
        """Let time pass."""
        self.clock.advance("0s" if is_set_back else f"{hours}h")
        self.seconds += 0 if is_suspended else hours * 3600


class Inline(Executor):
    """Calls at once what is submitted."""

    def __init__(self, *given: Any) -> None:
        pass

    def submit(self, call: Any, *given: Any, **options: Any) -> Future[Any]:  # type: ignore[override]
        done: Future[Any] = Future()
        done.set_result(call(*given, **options))
        return done


class AskedLog(MemoryLog):
    """A log behind whose next answer, which is the last commit, something happens."""

    happens: Callable[[], object] | None = None

    def last_commit(self, *given: Any) -> Commit | None:
        found, happens = super().last_commit(*given), self.happens
        self.happens = None
        if happens is not None:
            happens()
        return found


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def log() -> AskedLog:
    return AskedLog()


@pytest.fixture
def writer(log: AskedLog, tmp_path: Path) -> Writer:
    made = Writer(application(tmp_path / "app", "topic:"), log)
    made.commit([(key, "1") for key in "abcdefgh"])
    made.commit([("h", "2")])
    return made


def lose_a_deletion(writer: Writer) -> str:
    """Delete an entry, and let the log forget that, as after more than a day; return the last version."""
    writer.commit([("a", "")])
    version = writer.commit([("b", "2")])
    writer.log.maintain(SystemClock().now_ms() + 25 * 3_600_000)
    writer.contents[version] = writer.restored(version)  # compaction leaves one record of each versioned entry
    return version


def follow(copy: Replica, times: Times) -> None:
    """Let the copy be at the last commit for longer than the age to which one is trusted."""
    assert copy.catch_up()
    for _ in HOURS:
        times.advance(1)
        assert copy.catch_up()


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_replica_reads_only_what_changed(
    writer: Writer, times: Times, tmp_path: Path, is_reopened: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Replica(writer.application, "0_0", writer.log, tmp_path / "replica", world=times.world) as copy:
        follow(copy, times)
        if is_reopened:  # as for another program, or another place of the changelog
            copy._close_backends()
            copy._open()
        before, version = copy.restored, writer.commit([("a", "")])
        assert copy.catch_up() and copy.version == version
        assert content_of(copy) == writer.contents[version]
        assert copy.restored - before < before / 2
    assert REBUILDING not in caplog.text


@pytest.mark.parametrize("away", [{}, {"is_suspended": True}, {"is_set_back": True}], ids=str)
def test_a_replica_that_was_away_loses_no_deletion(
    writer: Writer, times: Times, tmp_path: Path, away: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    """Its machine may have been suspended, which stops the stopwatch, or its clock set back meanwhile."""
    with Replica(writer.application, "0_0", writer.log, tmp_path / "replica", world=times.world) as copy:
        follow(copy, times)
        version = lose_a_deletion(writer)
        times.advance(13, **away)
        assert copy.catch_up() and copy.version == version
        assert content_of(copy) == writer.contents[version]
    assert REBUILDING in caplog.text


def test_a_replica_that_was_frozen_behind_the_logs_answer_loses_no_deletion(
    writer: Writer, log: AskedLog, times: Times, tmp_path: Path
) -> None:
    """The answer holds for the time at which the log was asked."""
    with Replica(writer.application, "0_0", log, tmp_path / "replica", world=times.world) as copy:
        assert copy.catch_up()

        def freeze() -> None:
            times.advance(13)
            lose_a_deletion(writer)

        log.happens = freeze
        assert copy.catch_up()
        assert copy.catch_up()
        assert copy.version == list(writer.contents)[-1]
        assert content_of(copy) == writer.contents[copy.version]


def test_a_copy_of_another_process_has_only_the_time_of_its_version(
    writer: Writer, times: Times, tmp_path: Path
) -> None:
    with Replica(writer.application, "0_0", writer.log, tmp_path / "replica", world=times.world) as copy:
        follow(copy, times)
    version = lose_a_deletion(writer)
    with Replica(writer.application, "0_0", writer.log, tmp_path / "replica", world=times.world) as copy:
        assert copy.version != version and copy.catch_up() and copy.version == version
        assert content_of(copy) == writer.contents[version]


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_standby_reads_only_what_changed_unless_it_was_away(
    writer: Writer, log: AskedLog, times: Times, fails: bool, is_away: bool,
    tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Also where the log did not answer when the task went on: the standby opens its copy again."""
    elsewhere = writer.application.with_settings(state_dir=str(tmp_path / "elsewhere"))
    with closing(Standbys(elsewhere, log, world=times.world)) as standbys:
        [turn] = times.calls
        turn()
        for _ in HOURS:
            times.advance(1)
            turn()
        [before] = [each.restored for each in standbys.status()]
        assert before, standbys.status()

        def fail() -> None:
            raise LogError("the log is away")

        if fails:
            log.happens = fail
            times.advance(1)
            turn()
            assert [each.state for each in standbys.status()] == ["failed"]
        version = lose_a_deletion(writer) if is_away else writer.commit([("a", "")])
        times.advance(13 if is_away else 1)
        turn()
        [found] = standbys.status()
        assert (found.version, found.error) == (version, "")
        assert (found.restored - before < before / 2) is not is_away
    assert (REBUILDING in caplog.text) is is_away
