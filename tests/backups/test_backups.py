"""Backups and restores: what continues from a backup has processed each record once, whatever happened before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock import (
    Application,
    ChangelogError,
    Commit,
    IncompatibleStateError,
    Processor,
    Record,
    Topology,
    key_value_store,
    run,
)
from penstock.plugins.engine.program.reset import plan_reset, reset, to_earliest
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.transfer.backups import (
    Catalog,
    back_up,
    plan_restore,
    prune,
    restore_backup,
    restoring,
)
from penstock.plugins.testing.contracts.expectations import run_histories
from penstock.record import TopicPartition

from ..changelogs.s3_server import S3Server
from ..lost_commits import lose_commits
from ..spark import apps
from ..spark.surroundings import Surroundings
from .counting import TEXT, Tasks, counting, expected, send

Sent = tuple[str, str]
ONE = st.tuples(st.sampled_from("abc"), st.sampled_from("uvwxyz"))
WORDS = st.lists(ONE, max_size=12)
TASKS = st.sampled_from(["0_0", "0_1", "1_0", "1_1"])


class BusyLog(MemoryLog):
    """A log in which something happens while a backup looks at the commits."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []
        self._one = RLock()

    def _happens(self) -> None:
        with self._one:
            meanwhile = self.meanwhile.pop() if self.meanwhile else None
            if meanwhile is not None:
                following, self.meanwhile = self.meanwhile, []
                meanwhile()
                self.meanwhile = following

    def last_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        self._happens()
        return super().last_commit(application_id, task_id, partitions)

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        self._happens()
        return super().end_offsets(partitions, stable=stable)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._happens()
        return super().start_offsets(partitions)


class Histories(RuleBasedStateMachine):
    """Tasks that process in any order, and backups between their commits.

    `changelog`, and `through`, the ordinary topic between the sub-topologies, are what a subclass runs with.
    """

    changelog = "directory:changes?snapshot_floor_bytes=300"
    through: str | None = None

    @initialize()
    def begin(self) -> None:
        self.directory = TemporaryDirectory()
        self.root = Path(self.directory.name)
        self.log = BusyLog()
        self.tasks = Tasks(self.application(), self.log)
        self.sent: list[Sent] = []
        self.restores = 0

    def application(self) -> Application:
        return counting(self.root, through=self.through, changelog=self.changelog)

    @rule(words=WORDS)
    def send(self, words: list[Sent]) -> None:
        send(self.log, words)
        self.sent += words

    @rule(task=TASKS, most=st.integers(1, 5))
    def process(self, task: str, most: int) -> None:
        self.tasks.process(task, most)

    @rule()
    def back_up(self) -> None:
        back_up(self.tasks.application, self.log, str(self.root / "backups"))

    @rule(keep=st.integers(1, 3))
    def prune(self, keep: int) -> None:
        prune(Catalog(str(self.root / "backups"), "app"), keep)

    def _working(self, work: tuple[Sent, str] | None) -> Callable[[], object]:
        def do() -> None:
            if work is not None:
                self.send([work[0]])
                self.tasks.process(work[1])

        return do

    def teardown(self) -> None:
        if hasattr(self, "tasks"):
            self.tasks.close()
            self.directory.cleanup()


class RepartitionHistories(Histories):
    """Restores are under other ids."""

    @rule(same_kind=st.booleans(), busy=st.lists(st.none() | st.tuples(ONE, TASKS), max_size=20))
    def restore_under_another_id(self, same_kind: bool, busy: list[tuple[Sent, str] | None]) -> None:
        """What it then processes gives each record once. The first application goes on during the backup and after."""
        self.log.meanwhile = [self._working(each) for each in busy]
        made = back_up(self.tasks.application, self.log, str(self.root / "backups"))
        self.log.meanwhile = []
        self.tasks.process("0_0")
        self.restores += 1
        other = "topic:" if self.changelog.startswith("directory") else "directory:changes"
        changelog = self.changelog if same_kind else other
        application = counting(self.root / "elsewhere", f"copy-{self.restores}", changelog=changelog)
        plan = plan_restore(application, self.log, str(self.root / "backups"), of="app")
        assert plan.backup == made.backup
        restore_backup(application, self.log, plan)
        tasks = Tasks(application, self.log)
        tasks.finish()
        tasks.close()
        assert tasks.content(self.root / f"content-{self.restores}") == expected(self.sent)


class RepartitionTopicHistories(RepartitionHistories):
    changelog = "topic:"


class IntermediateHistories(Histories):
    """The sub-topologies are connected by an ordinary topic, and a restore puts the application back in its log.

    The topic stays, with records that the backup does not have.
    """

    through = "between"

    @rule(busy=st.lists(st.none() | st.tuples(ONE, TASKS), max_size=20), more=WORDS)
    def restore(self, busy: list[tuple[Sent, str] | None], more: list[Sent]) -> None:
        """What it then processes gives each record once, also what it had processed after the backup."""
        self.log.meanwhile = [self._working(each) for each in busy]
        back_up(self.tasks.application, self.log, str(self.root / "backups"))
        self.log.meanwhile = []
        self.send(more)
        for task in ("0_0", "1_1", "0_1"):
            self.tasks.process(task, 2)
        self.tasks.close()
        application = self.application()
        reset(application, self.log, plan_reset(application, self.log, to_earliest), lambda: None)
        restore_backup(application, self.log, plan_restore(application, self.log, str(self.root / "backups")))
        self.tasks = Tasks(application, self.log)
        self.tasks.finish()
        self.restores += 1
        assert self.tasks.content(self.root / f"content-{self.restores}") == expected(self.sent)


class IntermediateTopicHistories(IntermediateHistories):
    changelog = "topic:"


@pytest.mark.parametrize(
    "histories", [RepartitionHistories, RepartitionTopicHistories, IntermediateHistories, IntermediateTopicHistories]
)
def test_each_record_counts_once(histories: type[Histories]) -> None:
    run_histories(histories, examples=6, steps=10)


@pytest.mark.parametrize("changelog", ["directory:changes", "topic:"])
def test_a_commit_at_any_moment_of_a_backup(changelog: str, tmp_path: Path) -> None:
    """The backup is of the time before it, or after it: what is counted and what waits fit each other."""
    for moment in range(24):
        log, sent = BusyLog(), [("a", "u"), ("b", "v"), ("c", "w")]
        root = tmp_path / str(moment)
        tasks = Tasks(counting(root, changelog=changelog), log)
        send(log, sent)
        tasks.process("0_0")
        tasks.process("0_1")
        log.meanwhile = [*map(tasks.process_later, ("1_1", "1_0", "0_1", "0_0")), *[lambda: None] * moment]
        send(log, more := [("a", "w"), ("b", "u"), ("c", "x")])
        back_up(tasks.application, log, str(root / "backups"))
        log.meanwhile = []
        application = counting(root / "elsewhere", "copy", changelog=changelog)
        restore_backup(application, log, plan_restore(application, log, str(root / "backups"), of="app"))
        copies = Tasks(application, log)
        copies.finish()
        for each in (tasks, copies):
            each.close()
        assert copies.content(root / "content") == expected(sent + more), moment


class CountAttempts(Processor):
    """Counts the attempts of each key. The first three fail, and the record is sent to the topic for retries."""

    def process(self, record: Record) -> None:
        counts = self.context.get_store("counts")
        counts.put(record.key, (counts.get(record.key) or 0) + 1)
        if int(record.value) < 3:
            self.context.forward(record.with_value(str(int(record.value) + 1)))


@pytest.mark.parametrize(("named", "attempts"), [((), 7), (("retries",), 4)])
def test_a_topic_for_retries(named: tuple[str, ...], attempts: int, tmp_path: Path) -> None:
    """What has been retried since the backup counts once if the setting says that nobody else writes to the topic."""
    topology = Topology().add_source("in", "words", "retries", **TEXT)
    store = key_value_store("counts", key_serde="str", value_serde="int")
    topology.add_processor("count", CountAttempts, "in", stores=[store]).add_sink("again", "retries", "count", **TEXT)
    application = Application("app", topology, log="memory:x", data_dir=str(tmp_path), intermediate_topics=named)
    tasks = Tasks(application, MemoryLog())
    send(tasks.log, [("a", "0")])
    tasks.finish()
    back_up(application, tasks.log, str(tmp_path / "backups"))
    for _ in range(3):
        tasks.finish()
    assert tasks.content(tmp_path / "before")["counts"] == {"a": 4}
    tasks.close()
    reset(application, tasks.log, plan_reset(application, tasks.log, to_earliest), lambda: None)
    restore_backup(application, tasks.log, plan_restore(application, tasks.log, str(tmp_path / "backups")))
    again = Tasks(application, tasks.log)
    for _ in range(4):
        again.finish()
    assert again.content(tmp_path / "after")["counts"] == {"a": attempts}
    again.close()


def test_a_restore_is_noted_after_it_set_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task without a commit begins in the topic for retries behind what was written there since the backup."""
    topology = Topology().add_source("in", "words", "retries", **TEXT)
    store = key_value_store("counts", key_serde="str", value_serde="int")
    topology.add_processor("count", CountAttempts, "in", stores=[store]).add_sink("again", "retries", "count", **TEXT)
    application, copy = (
        Application(name, topology, log="memory:x", data_dir=str(tmp_path / name), intermediate_topics=("retries",))
        for name in ("app", "copy")
    )
    tasks = Tasks(application, MemoryLog())
    send(tasks.log, [(key, "0") for key in "abcdef"])
    tasks.process("0_0")
    back_up(application, tasks.log, str(tmp_path / "backups"))
    tasks.finish()
    tasks.close()
    plan = plan_restore(copy, tasks.log, str(tmp_path / "backups"), of="app")

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(restoring._Restoring, "_write_state", killed)
        restore_backup(copy, tasks.log, plan)
    waiting = TopicPartition("retries", 1)
    assert tasks.log.committed("copy", [waiting])[waiting]
    repeated = plan_restore(copy, tasks.log, str(tmp_path / "backups"), of="app")
    assert repeated.is_repeated
    restore_backup(copy, tasks.log, repeated)
    assert tasks.log.committed("copy", [waiting])[waiting]


def test_in_an_object_store(tmp_path: Path) -> None:
    """The second backup writes what is new; a refused request is an error without the secrets in the URL."""
    with S3Server() as server:
        log, place = MemoryLog(), server.uri("bucket/backups")
        tasks = Tasks(counting(tmp_path), log)
        send(log, sent := [("a", "u"), ("b", "v"), ("a", "w")])
        tasks.finish()
        back_up(tasks.application, log, place)
        before = {path: len(data) for path, data in server.objects.items()}
        send(log, [("a", "u")])
        tasks.process("0_0")
        tasks.process("0_1")
        made = back_up(tasks.application, log, place)
        assert (made.whole, len(made.new), len(made.unchanged)) == ((), 1, 3)
        new = {path.rpartition(".")[2] for path in server.objects.keys() - before.keys()}
        assert new == {"claim", "delta", "json", "snapshot"}  # the last one: what waits between the tasks
        application = counting(tmp_path / "elsewhere", "copy")
        restore_backup(application, log, plan_restore(application, log, place, of="app"))
        copies = Tasks(application, log)
        copies.finish()
        server.refuse = "PUT"
        send(log, [("b", "x")])
        tasks.finish()
        with pytest.raises(ChangelogError, match=r"backup at s3://bucket/backups/app/.*: cannot write .*ACCESS_DENIED"):
            back_up(tasks.application, log, place)
        for each in (tasks, copies):
            each.close()
        assert copies.content(tmp_path / "content") == expected([*sent, ("a", "u")])


def test_records_that_a_task_without_a_commit_would_have_read_are_deleted(tmp_path: Path) -> None:
    log = BusyLog()
    tasks = Tasks(counting(tmp_path), log)
    send(log, [("a", "u"), ("b", "v"), ("a", "w")])
    made = back_up(tasks.application, log, str(tmp_path / "backups")).backup
    assert not any(made.commits.values()) and {each.topic for each in made.starts} == {"words"}
    tasks.finish()
    tasks.close()
    copy = counting(tmp_path / "elsewhere", "copy")
    plan_restore(copy, log, str(tmp_path / "backups"), of="app")
    for each, at in log.committed("app", list(made.starts)).items():
        log.purge(each, at or 0)
    with pytest.raises(IncompatibleStateError, match=r"words-0 has offsets \d to \d, and the backup continues at 0"):
        plan_restore(copy, log, str(tmp_path / "backups"), of="app")


@pytest.mark.parametrize("changelog", ["directory:changes", "topic:"])
def test_after_commits_were_lost_no_backup_without_their_state_is_written(tmp_path: Path, changelog: str) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 2})
        surroundings.put("in", [(f"k{number}", "v", number) for number in range(9)])
        made, log = (
            surroundings.application("app", apps.count(), engine="embedded", changelog=changelog),
            surroundings.log,
        )
        run(made)
        place = str(tmp_path / "backups")
        back_up(made, log, place)
        lose_commits(log, "app")
        with pytest.raises(IncompatibleStateError, match=r"lost the commits of task 0_0, 0_1: .* have expired"):
            back_up(made, log, place)
        assert len(Catalog(place, "app").names()) == 1
