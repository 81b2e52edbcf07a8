"""What cannot be resharded is refused by name, and nothing has changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    STREAM_TIME,
    Application,
    ChangelogError,
    IncompatibleStateError,
    Lease,
    Log,
    Processor,
    Record,
    StoreError,
    Topology,
    key_value_store,
    visitor,
)
from penstock.plugins.dsl import StreamsBuilder, tumbling
from penstock.plugins.engine.program.pausing import change_stored, pause, read_paused, resume
from penstock.plugins.engine.program.stored_id import read_stored, renamed
from penstock.plugins.engine.program.visits import ask_for_visit, stop_visits
from penstock.plugins.engine.task.notes import Paused
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.transfer.reshard import plan_reshard, reshard, undo
from tests.small_disk import small_disk

from .programs import Append
from .runs import lease, new_log, outputs, produce, resharded, run, settings

KEYS = [f"key {number}" for number in range(9)]
TO_SEVEN: dict[str, Any] = {"partitions": 7, "sources": {"in": "new"}}


def application(directory: Path, processor: Any, topic: str = "in", **options: Any) -> Application:
    store = key_value_store("kept", **options)
    topology = Topology().add_source("in", topic).add_processor("keep", processor, "in", stores=[store])
    return Application("shop", topology.add_sink("out", "out", "keep"), **settings(directory, "directory:changes"))


class Total(Processor):
    """Counts the records of its task."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("kept")
        store.put("total", str(int(store.get("total") or 0) + 1))


class Remind(Processor):
    """Makes a schedule for some of the records."""

    def process(self, record: Record) -> None:
        self.context.get_store("kept").put(record.key, record.value)
        if record.key == KEYS[0]:
            self.context.schedule("1h", self.remind, STREAM_TIME)

    def remind(self, now: int) -> None:
        self.context.forward(Record("reminder", str(now), now))


def log_with(processed: Callable[[str], Application]) -> MemoryLog:
    log = new_log({"in": 4, "new": 7, "out": 1})
    produce(log, "in", [(key, "1", 1) for key in KEYS])
    run(processed("in"), log)
    return log


def check_unchanged(log: Log, app: Application) -> None:
    """Check that the application goes on as it was."""
    assert read_stored("shop", log).id == "shop"
    assert not [topic for topic in log.topics() if topic.startswith("shop-layout-")]
    run(app, log)
    changes = Path(app.settings.data_dir) / "changes"
    assert not [path for path in changes.glob("shop-layout-*/**/*") if path.is_file()]


def test_a_store_that_is_not_by_key(tmp_path: Path) -> None:
    """Each task has a total of its own under one key; dropped, the others can be divided."""
    log = log_with(lambda topic: application(tmp_path, Total, topic))
    with pytest.raises(
        IncompatibleStateError, match=r"store 'kept' is not divided by key: task 0_\d, key b'total': it"
    ):
        resharded(application(tmp_path, Total), log, **TO_SEVEN)
    check_unchanged(log, application(tmp_path, Total))
    assert not any(resharded(application(tmp_path, Total), log, **TO_SEVEN, dropped=["kept"]).rows.values())
    run(application(tmp_path, Total, "new"), log)


def test_a_schedule_that_some_tasks_have(tmp_path: Path) -> None:
    log = log_with(lambda topic: application(tmp_path, Remind, topic))
    with pytest.raises(IncompatibleStateError, match="sub-topology 0, node 'keep': its tasks have different schedules"):
        resharded(application(tmp_path, Remind), log, **TO_SEVEN)
    check_unchanged(log, application(tmp_path, Remind))


class Visited(Append):
    """Has a visitor."""

    @visitor()
    def visit(self, key: str, value: str) -> None:
        self.context.forward(Record(key, value, 0))


def test_a_visit_that_is_not_over(tmp_path: Path) -> None:
    log = log_with(lambda topic: application(tmp_path, Visited, topic))
    ask_for_visit(application(tmp_path, Visited), log, "visit", 1)
    with pytest.raises(IncompatibleStateError, match=r"a visit of keep.visit is not over, .* keep.visit --stop"):
        resharded(application(tmp_path, Visited), log, **TO_SEVEN)
    check_unchanged(log, application(tmp_path, Visited))
    assert stop_visits(application(tmp_path, Visited), log, "visit") == 1
    resharded(application(tmp_path, Visited), log, **TO_SEVEN)


def test_a_paused_application(tmp_path: Path) -> None:
    """Its records would be processed. A pause that is made meanwhile stays, also when it is undone."""
    log, app = log_with(lambda topic: application(tmp_path, Append, topic)), application(tmp_path, Append)
    before = outputs(log)
    produce(log, "in", [(key, "2", 2) for key in KEYS])
    pause(app, log, [0])
    with pytest.raises(IncompatibleStateError, match=r"sub-topologies 0 are paused, .* `penstock resume`"):
        resharded(app, log, **TO_SEVEN)
    assert outputs(log) == before
    resume(app, log)

    def on_step(text: str) -> None:
        pause(app, log)

    done = reshard(plan_reshard(app, log, **TO_SEVEN), log, lease(app, log), on_step)
    assert read_paused(done.id, log).of(app) == {0}
    undo(app, log, lease(app, log))
    assert read_paused("shop", log).of(app) == {0}


def test_a_pause_at_the_moment_of_the_switch(tmp_path: Path) -> None:
    """`penstock pause` has found the application where it was stored, and writes its note while that changes."""
    log, app = log_with(lambda topic: application(tmp_path, Append, topic)), application(tmp_path, Append)
    owned = lease(app, log)

    class Switching(Lease):
        """A lease under which the switch is written last."""

        def renew(self) -> None:
            owned.renew()

        def release(self) -> None:
            owned.release()

        def put_meta(self, application_id: str, key: str, value: bytes) -> None:
            if key == "stored-as":
                pause(app, log)
            owned.put_meta(application_id, key, value)

    done = reshard(plan_reshard(app, log, **TO_SEVEN), log, Switching())
    assert read_paused(done.id, log).of(app) == {0}
    resume(renamed(app, done.id), log)
    undo(app, log, lease(app, log))
    assert read_paused("shop", log).of(app) == set()


def test_a_pause_after_the_switch(tmp_path: Path) -> None:
    """`penstock pause` writes its note where the application was stored, when all of it has been carried."""
    log, app = log_with(lambda topic: application(tmp_path, Append, topic)), application(tmp_path, Append)

    def late(stored: Application) -> Paused:
        if stored.id == app.id:
            resharded(app, log, **TO_SEVEN)
        return pause(stored, log)

    stored, paused = change_stored(app, log, late)
    assert stored.id == read_stored("shop", log).id != "shop"
    assert paused.of(app) == read_paused(stored.id, log).of(app) == {0}


def test_a_store_outside_the_changelog(tmp_path: Path) -> None:
    log = log_with(lambda topic: application(tmp_path, Append, topic, logged=False))
    with pytest.raises(IncompatibleStateError, match=r"store 'kept' is not in the changelog \(logged=False\)"):
        resharded(application(tmp_path, Append, logged=False), log, **TO_SEVEN)
    check_unchanged(log, application(tmp_path, Append, logged=False))


def test_a_parked_store(tmp_path: Path) -> None:
    """Nothing says what its keys are; it may be given up."""

    def app(topic: str, *more: str) -> Application:
        stores = [key_value_store(name) for name in ("kept", *more)]
        topology = Topology().add_source("in", topic).add_processor("keep", Append, "in", stores=stores)
        return Application("shop", topology.add_sink("out", "out", "keep"), **settings(tmp_path, "topic:"))

    log = log_with(lambda topic: app(topic, "more"))
    run(app("in"), log)
    with pytest.raises(IncompatibleStateError, match="store 'more' is parked, and nothing says what its keys are"):
        resharded(app("in"), log, **TO_SEVEN)
    assert sum(resharded(app("in"), log, **TO_SEVEN, dropped=["more"]).rows.values()) == len(KEYS)
    run(app("new"), log)


def test_another_program(tmp_path: Path) -> None:
    log = log_with(lambda topic: application(tmp_path, Append, topic))
    with pytest.raises(IncompatibleStateError, match="its program or settings are others than when it ran last"):
        resharded(application(tmp_path, Append, ttl="1h"), log, **TO_SEVEN)
    check_unchanged(log, application(tmp_path, Append))


def test_a_changelog_that_is_another_applications(tmp_path: Path) -> None:
    """The one that is there does not lead to the committed versions; a copy of them is not on this machine."""
    log = log_with(lambda topic: application(tmp_path, Append, topic))
    shutil.move(tmp_path / "changes/shop", tmp_path / "changes/away")
    elsewhere = application(tmp_path, Append)
    elsewhere.settings = replace(elsewhere.settings, state_dir=str(tmp_path / "elsewhere"))
    with pytest.raises(ChangelogError, match=r"changelog at .*: no way to version"):
        resharded(elsewhere, log, **TO_SEVEN)
    shutil.rmtree(tmp_path / "changes/shop", ignore_errors=True)
    shutil.move(tmp_path / "changes/away", tmp_path / "changes/shop")
    check_unchanged(log, application(tmp_path, Append))


def test_a_full_disk(tmp_path: Path) -> None:
    app = application(tmp_path, Append)
    log = log_with(lambda topic: application(tmp_path, Append, topic))
    produce(log, "in", [(key, "x" * 400_000, 2) for key in KEYS])
    with small_disk(tmp_path / "small", 1_000) as disk:
        small = application(tmp_path, Append)
        small.settings = replace(small.settings, state_dir=str(disk))
        with pytest.raises(StoreError, match="disk is full|No space left"):
            resharded(small, log, **TO_SEVEN)
    check_unchanged(log, app)
    assert sum(resharded(app, log, **TO_SEVEN).rows.values()) == len(KEYS)


def test_an_id_that_is_taken(tmp_path: Path) -> None:
    log = log_with(lambda topic: application(tmp_path, Append, topic))
    log.create_topic("shop-layout-2-kept-changelog", 1, internal=True)
    assert resharded(application(tmp_path, Append), log, **TO_SEVEN).id == "shop-layout-3"


class Wait(Processor):
    """Sets a timer for each key, and forwards when it is due."""

    def process(self, record: Record) -> None:
        at = max(record.timestamp + 50, self.context.current_stream_time_ms())
        self.context.timer(record.key, at, STREAM_TIME)

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, "due", at))


def test_stream_time_does_not_go_back(tmp_path: Path) -> None:
    """A task that is ahead gives its time to those whose keys were behind."""

    def waiting(topic: str) -> Application:
        topology = Topology().add_source("in", topic).add_processor("wait", Wait, "in").add_sink("out", "out", "wait")
        return Application("shop", topology, **settings(tmp_path, "topic:"))

    log = new_log({"in": 4, "new": 1, "out": 1})
    produce(log, "in", [(KEYS[0], "1", 10), (KEYS[1], "1", 1_000)])
    run(waiting("in"), log)
    assert not outputs(log)
    resharded(waiting("new"), log, 1, sources={"in": "new"})
    produce(log, "new", [(KEYS[2], "1", 20)])
    run(waiting("new"), log)
    assert outputs(log) == {KEYS[0].encode(): [(b"due", 60)], KEYS[2].encode(): [(b"due", 1_000)]}


def closing(directory: Path, topic: str) -> Application:
    builder = StreamsBuilder()
    windows = builder.stream(topic).group_by_key().windowed_by(tumbling("10ms", grace="0ms"), emit="on_close")
    windows.count("kept").to_stream().map(lambda key, value: (str(key), str(value)), with_key=True).to("out")
    return Application("shop", builder, **settings(directory, "topic:"))


def test_windows_of_tasks_at_different_times_are_sent_once(tmp_path: Path) -> None:
    """A task that is ahead has sent windows that those behind it have still to send."""
    logs = [new_log({"in": 4, "new": 3, "out": 1}) for _ in range(2)]
    for name, log in zip(("always", "resharded"), logs, strict=True):
        for number, key in enumerate(KEYS):
            produce(log, "in", [(key, "", time) for time in range(1, 15 * (number + 1), 5)])
        run(closing(tmp_path / name, "in"), log)
    assert resharded(closing(tmp_path / "resharded", "new"), logs[1], 3, sources={"in": "new"})
    for name, log, topic in zip(("always", "resharded"), logs, ("in", "new"), strict=True):
        count = len(outputs(log))
        produce(log, topic, [(key, "", 1_000) for key in KEYS])
        run(closing(tmp_path / name, topic), log)
        assert 0 < count < len(outputs(log))
    assert outputs(logs[1]).keys() == outputs(logs[0]).keys()
    assert all(len(sent) == 1 for sent in outputs(logs[1]).values())
