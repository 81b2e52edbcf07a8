"""ContinuousEngine without Spark and without a process: renewals, heartbeats, steps, and the end."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import LogError, OutputBatch, RuntimeUnavailableError, Topology
from penstock.plugins.engine.host import continuous_engine
from penstock.plugins.engine.host.continuous_engine import ContinuousEngine, HeartbeatReader
from penstock.plugins.engine.host.reports import Meter, SlotMessage, SlotPlan, TaskFailure
from penstock.plugins.engine.host.slot_engine import HostInfo, SlotCargo, SlotRequest
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.own_topics import HEARTBEATS
from penstock.plugins.engine.task.task_runner import is_taken_over
from tests.spark import apps
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until


class World:
    """An application on a local log, the engine of its one slot, and the driver's end of the heartbeats."""

    def __init__(self, surroundings: Surroundings, topology: Topology, **settings: Any) -> None:
        self.surroundings = surroundings
        self.prepared = prepare(surroundings.application("app", topology, **settings), surroundings.log)
        self.tasks = self.prepared.tasks()
        HEARTBEATS.make("app", surroundings.log)
        self.reader = HeartbeatReader(surroundings.log, "app", "run")
        cargo = SlotCargo(ContinuousEngine, self.prepared.application, self.tasks, "/nowhere", 30, run="run")
        engine = cargo.engine(HostInfo("token", 0, "", "first", Meter()))
        assert isinstance(engine, ContinuousEngine)
        self.engine = engine

    def renew(self, **changes: Any) -> SlotMessage:
        """Hand the engine a batch."""
        plan = SlotPlan(0, "", 0, {task: {} for task in self.tasks}, **changes)
        return SlotMessage.from_json(self.engine.handle(SlotRequest(plan, {}, "e")).to_json())

    def step(self, number: int, clock_ms: int) -> SlotMessage:
        """Hand it a step to the present ends of all topics."""
        ends = {task: self.surroundings.log.end_offsets(partitions) for task, partitions in self.tasks.items()}
        message = self.engine.handle(SlotRequest(SlotPlan(0, "", clock_ms, ends, step=number), {}, "e"))
        assert isinstance(message, SlotMessage)
        return message

    def put(self, *values: str) -> None:
        self.surroundings.put("in", [("k", value, 1) for value in values], 0)

    def outputs(self) -> list[str | None]:
        return [value for found in self.surroundings.values_by_key("out").values() for value in found]


MakeWorld = Callable[..., World]


@contextmanager
def world(tmp_path: Path, topology: Topology, **settings: Any) -> Iterator[World]:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 1})
        made = World(surroundings, topology, **settings)
        try:
            yield made
        finally:
            made.engine.close()


def test_local_state_stays_until_every_task_is_open_somewhere(tmp_path: Path) -> None:
    with world(tmp_path, apps.count(), state_dir="state", state_cleanup_delay="0ms") as each:
        neighbours = tmp_path / "data" / "state" / "app" / "0_7"
        neighbours.mkdir(parents=True)
        (neighbours.parent / "0_7.lock").touch()
        each.renew()
        each.put("a")
        wait_until(lambda: each.outputs() == ["1"], "a record", 30)
        each.engine._resources.clean_up(each.prepared.application)
        assert neighbours.is_dir()
        each.renew(is_settled=True)
        each.engine._resources._next_clean_up.clear()
        each.engine._resources.clean_up(each.prepared.application)
        assert not neighbours.exists()


def test_tasks_work_between_renewals_and_heartbeats_tell_of_it(tmp_path: Path) -> None:
    with world(tmp_path, apps.count(), commit_interval="0ms") as each:
        first = each.renew()
        assert (first.run, first.failure, first.stopped) == ("run", None, False)
        each.put("a", "b")
        wait_until(lambda: each.outputs() == ["1", "2"], "records without a batch", 30)
        beats: list[SlotMessage] = []

        def reported() -> int:
            beats.extend(each.reader.poll())
            return sum(result.report.records_in for beat in beats for result in beat.results if result.report)

        wait_until(lambda: reported() == 2, "their report", 30)
        opened = {result.task_id for beat in beats for result in beat.results if result.report.opened == "first"}  # type: ignore[union-attr]
        assert opened == {"0_0", "0_1"}
        assert beats[-1].host is not None and beats[-1].stuck_seconds < 10
        for expected in (2, 0):
            message = each.engine.handle(SlotRequest(SlotPlan(0, "", 0, {"0_0": {}}), {}, "e"))
            assert isinstance(message, SlotMessage) and message.observed is not None
            assert message.observed.counts.records_in == expected, "what heartbeats have told, too, once"
            assert message.observed.state_rows == 1


def test_a_stop_commits_and_closes(tmp_path: Path) -> None:
    with world(tmp_path, apps.count(), commit_interval="1h") as each:
        each.renew()
        each.put("a")
        wait_until(lambda: each.outputs() == ["1"], "the first commit", 30)
        each.put("b")
        last = each.renew(stopping=True)
        assert last.stopped and each.outputs() in (["1"], ["1", "2"])
        assert last.host is not None and last.host.open_tasks == 0
        each.put("c")
        assert each.renew(stopping=True).stopped


@pytest.mark.parametrize("returns", [True, False])
def test_a_stop_waits_for_the_longest_record_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, returns: bool
) -> None:
    monkeypatch.setattr(continuous_engine, "_SAY_SECONDS", 0.1)
    monkeypatch.setattr(continuous_engine, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(continuous_engine, "STUCK_SECONDS", 300.0 if returns else 0.5)
    flag = tmp_path / "flag"
    release = Path(f"{flag}.release")
    with world(tmp_path, apps.count(partial(apps.LingersOnce, str(flag)))) as each:
        each.renew()
        each.put("linger")
        wait_until(flag.exists, "a processor that does not return", 30)
        answers: list[SlotMessage | Exception] = []

        def stop() -> None:
            try:
                answers.append(each.renew(stopping=True))
            except RuntimeUnavailableError as error:
                answers.append(error)

        stopping = threading.Thread(target=stop)
        stopping.start()
        if returns:
            wait_until(lambda: "(task 0_0, node 'count', in LingersOnce.process" in caplog.text, "what it waits for")
            assert stopping.is_alive()
            release.touch()
        stopping.join(60)
        release.touch()
        [answer] = answers
        if returns:
            assert isinstance(answer, SlotMessage) and answer.stopped and each.outputs() == ["1"]
        else:
            assert "a processor may not return (task 0_0, node 'count'" in str(answer)


def test_the_last_message_reports_what_a_heartbeat_under_way_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, apps.count(), commit_interval="0ms") as each:
        each.renew()
        log, append = each.engine._log, each.engine._log.append
        under_way, may_fail = threading.Event(), threading.Event()

        def fails(batch: OutputBatch) -> Any:
            """Heartbeats with a report wait, and then cannot be sent."""
            if batch.topic != HEARTBEATS.of("app") or not SlotMessage.from_json(batch.values[0].decode()).results:  # type: ignore[union-attr]
                return append(batch)
            under_way.set()
            may_fail.wait(30)
            raise LogError("the log is away")

        monkeypatch.setattr(log, "append", fails)
        each.put("a", "b")
        wait_until(under_way.is_set, "a heartbeat under way that reports something", 30)
        threading.Timer(0.3, may_fail.set).start()
        last = each.renew(stopping=True)
        told = [last, *each.reader.poll()]
        assert sum(result.report.records_in for message in told for result in message.results if result.report) == 2


def test_between_two_steps_nothing_is_processed(tmp_path: Path) -> None:
    with world(tmp_path, apps.count(), commit_interval="0ms") as each:
        each.put("a")
        assert not each.step(0, 5_000).failure
        assert each.outputs() == ["1"]
        each.put("b")
        assert each.engine._commands.empty() and each.outputs() == ["1"]
        message = each.step(1, 9_000)
        assert not message.failure and each.outputs() == ["1", "2"]
        assert not each.reader.poll()


def test_a_log_that_fails_ends_all_tasks_with_an_error_of_the_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, apps.count()) as each:
        each.renew()
        each.put("a")
        wait_until(lambda: each.outputs() == ["1"], "the first record", 30)

        def away(*arguments: Any) -> Any:
            raise LogError("the log is away")

        monkeypatch.setattr(each.engine._log, "end_offsets", away)
        wait_until(lambda: each.engine._failure_of_slot is not None, "the error", 30)
        failed = each.renew().failure
        assert failed is not None and "the log is away" in failed.message and "slot 0" in failed.task_id


def test_local_state_that_is_removed_with_its_global_stores_is_made_again(tmp_path: Path) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 1, "table": 1})
        each = World(surroundings, apps.look_up(), commit_interval="0ms", state_dir=str(tmp_path / "state"))
        try:
            surroundings.put("table", [("k", "found", 0)], 0)
            each.renew()
            each.put("?")
            wait_until(lambda: each.outputs() == ["found"], "an answer", 30)
            shutil.rmtree(tmp_path / "state")
            surroundings.put("table", [("k", "again", 0)], 0)
            told: list[TaskFailure] = []

            def is_told() -> bool:
                told.extend(result.failure for beat in each.reader.poll() for result in beat.results if result.failure)
                return bool(told)

            wait_until(is_told, "the tasks' failures", 10)
            assert {failure.task_id for failure in told} <= set(each.tasks)
            assert all(is_taken_over(failure.error()) for failure in told)
            assert each.renew().failure is None
            each.put("?")
            wait_until(lambda: each.outputs() == ["found", "again"], "an answer from the new copy", 30)
        finally:
            each.engine.close()


def test_heartbeats_tell_how_long_tasks_are_stuck_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous_engine, "_MOMENT_SECONDS", 0.1)
    flag = tmp_path / "flag"
    with world(tmp_path, apps.count(partial(apps.LingersOnce, str(flag)))) as each:
        each.renew()
        each.put("linger")
        wait_until(flag.exists, "a processor that does not return", 30)
        told: list[SlotMessage] = []

        def is_told() -> bool:
            # At times it is in a function of Python's that it calls.
            where = "task 0_0, node 'count', in LingersOnce.process (apps.py, line "
            told[:] = [
                beat for beat in each.reader.poll() if beat.stuck_seconds > 0.2 and beat.stuck_in.startswith(where)
            ]
            return bool(told)

        wait_until(is_told, "the heartbeat that tells of it", 30)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(each.engine._loop, "still", lambda: (1_000.0, "the restoring of task 0_1"))
            message = each.renew()
            assert (message.stuck_seconds, message.stuck_in) == (1_000.0, "the restoring of task 0_1")
        before = each.renew().stuck_seconds
        wait_until(lambda: each.renew().stuck_seconds > before + 0.2, "a standstill again", 30)
        Path(f"{flag}.release").touch()
        wait_until(lambda: each.renew().stuck_in == "" and each.outputs() == ["1"], "it goes on", 30)


def test_a_paused_task_commits_what_it_has_done_and_processes_nothing_more(tmp_path: Path) -> None:
    with world(tmp_path, apps.count(), commit_interval="0ms") as each:
        each.renew()
        each.put("a")
        wait_until(lambda: each.outputs() == ["1"], "a record", 30)
        wait_until(lambda: list(each.renew(paused=[0]).paused) == [0], "the pause is obeyed", 30)
        each.put("b", "c")
        loop = each.engine._loop
        assert loop is not None
        wait_until(lambda: any(task.queued() for task in loop._tasks.values()), "records that wait", 30)
        each.renew(paused=[0])
        assert each.outputs() == ["1"]
        each.renew()
        wait_until(lambda: each.outputs() == ["1", "2", "3"], "what waited", 30)
