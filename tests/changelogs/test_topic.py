"""The topic changelog: through the tasks that write it, over the log in memory and on this host."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Application, ManualClock, Processor, Record, Topology, World, key_value_store
from penstock.errors import ChangelogError, IncompatibleStateError
from penstock.log import Log
from penstock.plugins.changelogs.topic import TopicChangelog
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.contracts.log_tests import read
from penstock.program.nodes import TaskId
from penstock.record import Headers, OutputBatch, TopicPartition
from penstock.store import ValueAndTimestamp, ValueTimestampHeaders
from penstock.store.envelope import PLAIN
from penstock.store.kept_store import KeptStore
from penstock.support.names import changelog_topic

from ..rotation import examples

INPUT = TopicPartition("in", 0)


class Keep(Processor):
    """Keeps the last value of each key, with its time in one of the stores; nothing is a deletion."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.plain, self.stamped, self.expiring = map(context.get_store, ("plain", "stamped", "expiring"))

    def process(self, record: Record) -> None:
        for store, value in (
            (self.plain, record.value),
            (self.stamped, ValueAndTimestamp(record.value, record.timestamp)),
            (self.expiring, record.value),
        ):
            if record.value:
                store.put(record.key, value)
            else:
                store.delete(record.key)


def make(directory: Path, **more: Any) -> Application:
    stores = [
        key_value_store("plain", key_serde="str", value_serde="str"),
        key_value_store("stamped", key_serde="str", value_serde="str", timestamped=True),
        key_value_store("expiring", key_serde="str", value_serde="str", ttl="1000d"),
    ]
    topology = Topology().add_source("in", "in").add_processor("keep", Keep, "in", stores=stores)
    given = {"log": "memory:x", "changelog": "topic:", "data_dir": str(directory), "store_backend": "memory", **more}
    return Application("app", topology, **given)


@pytest.fixture(params=["memory", "local"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    made = MemoryLog() if request.param == "memory" else LocalLog(str(tmp_path / "log"))
    yield made
    made.close()


def feed(log: Log, rows: list[tuple[str, str]], start: int = 1) -> None:
    keys: list[bytes | None] = [key.encode() for key, _ in rows]
    log.append(OutputBatch("in", keys, [value.encode() for _, value in rows], list(range(start, start + len(rows)))))


def worker(application: Application, log: Log) -> TaskWorker:
    return TaskWorker(application, TaskId(0, 0), [INPUT], log, resources=ProcessResources())


def contents(task: TaskWorker) -> dict[str, dict[str, Any]]:
    assert task.task is not None
    found = {}
    for name, store in task.task.stores.items():
        with store.all() as entries:  # type: ignore[attr-defined]
            found[name] = dict(entries)
    return found


def run_to_end(task: TaskWorker, log: Log) -> None:
    task.run_batch(log.end_offsets([INPUT]), 0)


def test_another_host_restores_what_was_committed(log: Log, tmp_path: Path) -> None:
    log.create_topic("in", 1)
    application = make(tmp_path / "one")
    prepare(application, log)
    first = worker(application, log)
    feed(log, [("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("b", "")])
    run_to_end(first, log)
    expected = contents(first)
    assert expected["plain"] == {"a": "3", "c": "4"}
    assert expected["stamped"] == {"a": ValueAndTimestamp("3", 3), "c": ValueAndTimestamp("4", 4)}
    first.close()
    second = worker(make(tmp_path / "two"), log)
    report = second.run_batch({}, 0)
    assert report.restored > 0
    assert contents(second) == expected
    second.close()


def test_an_ordinary_reader_sees_keys_and_values(log: Log, tmp_path: Path) -> None:
    """As the serdes write them, tombstones as nulls, the entry's own time."""
    log.create_topic("in", 1)
    application = make(tmp_path)
    prepare(application, log)
    task = worker(application, log)
    for number, row in enumerate([("a", "1"), ("b", "2"), ("b", "")], 1):
        feed(log, [row], number * 10)
        run_to_end(task, log)
    task.close()
    found = {
        store: [(each.key, each.value) for each in read(log, TopicPartition(changelog_topic("app", store), 0))]
        for store in ("plain", "stamped", "expiring")
    }
    expected = [(b"a", b"1"), (b"b", b"2"), (b"b", None)]
    assert found == {"plain": expected, "stamped": expected, "expiring": expected}
    stamped = read(log, TopicPartition(changelog_topic("app", "stamped"), 0))
    assert [each.timestamp for each in stamped[:2]] == [10, 20]
    assert all(not each.headers for each in stamped)
    assert log.topics()[changelog_topic("app", "plain")].config["cleanup.policy"] == "compact"


class KeepHeaders(Processor):
    """Keeps the last record of each key."""

    def process(self, record: Record) -> None:
        self.context.get_store("s").put(record.key, ValueTimestampHeaders(*record[1:]))


def test_headers_are_those_of_the_records(log: Log, tmp_path: Path) -> None:
    def make(directory: Path, **options: Any) -> Application:
        store = key_value_store("s", key_serde="str", value_serde="str", **options)
        topology = Topology().add_source("in", "in").add_processor("keep", KeepHeaders, "in", stores=[store])
        return Application("app", topology, log="memory:x", changelog="topic:", data_dir=str(directory))

    log.create_topic("in", 1)
    application = make(tmp_path / "one", headers=True)
    prepare(application, log)
    headers: list[Headers] = [(("h", b"x"), ("h", None)), ()]
    log.append(OutputBatch("in", [b"a", b"b"], [b"1", b"2"], [5, 0], headers))
    task = worker(application, log)
    run_to_end(task, log)
    task.close()
    [first, second] = read(log, TopicPartition(changelog_topic("app", "s"), 0))
    assert (first.key, first.value, first.timestamp, first.headers) == (b"a", b"1", 5, headers[0])
    assert (second.key, second.value) == (b"b", b"2")
    expected = {"a": ValueTimestampHeaders("1", 5, headers[0]), "b": ValueTimestampHeaders("2", 0)}
    other = worker(make(tmp_path / "two", headers=True), log)
    other.run_batch({}, 0)
    assert contents(other) == {"s": expected}
    other.close()


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["", "x", "y", "z"])), min_size=1, max_size=4),
            st.sampled_from(["stay", "here", "elsewhere", "uncommitted"]),
        ),
        max_size=8,
    )
)
def test_any_moves_between_hosts(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    """A copy that was left behind is caught up, a new one restored, what was not committed is nowhere."""
    log = MemoryLog()
    log.create_topic("in", 1)
    base = tmp_path_factory.mktemp("moves")
    hosts = [make(base / "one", store_backend="lmdb"), make(base / "two", store_backend="lmdb")]
    prepare(hosts[0], log)
    at = 0
    task = worker(hosts[at], log)
    expected: dict[str, str] = {}
    time = 1
    for rows, move in steps:
        feed(log, rows, time)
        time += len(rows)
        run_to_end(task, log)
        for key, value in rows:
            if value:
                expected[key] = value
            else:
                expected.pop(key, None)
        assert contents(task)["plain"] == expected
        if move == "stay":
            continue
        if move == "uncommitted":
            assert task.task is not None
            task.task.stores["plain"].put("a", "never")  # type: ignore[attr-defined]
        task.close()
        at ^= move == "elsewhere"
        task = worker(hosts[at], log)
        task.run_batch({}, 0)
        found = contents(task)
        assert found["plain"] == expected
        assert {key: each.value for key, each in found["stamped"].items()} == expected
    task.close()


def test_a_version_says_where_its_delta_begins(log: Log, tmp_path: Path) -> None:
    """However often the task is opened from its local copy: who catches up from there reads nothing twice but that
    delta."""
    log.create_topic("in", 1)
    application = make(tmp_path, store_backend="lmdb")
    prepare(application, log)
    for number in range(1, 6):
        task = worker(application, log)
        for _ in range(2):
            (began,) = log.end_offsets([TopicPartition(changelog_topic("app", "plain"), 0)]).values()
            feed(log, [("a", "1"), ("b", "2"), ("c", str(number))])
            version = task.run_batch(log.end_offsets([INPUT]), 0).version
            assert list(map(int, version.rpartition("-")[2].split("_"))) == [began] * 3
        task.close()


def test_a_changelog_that_was_deleted_is_an_error(log: Log, tmp_path: Path) -> None:
    """Not an empty state."""
    log.create_topic("in", 1)
    application = make(tmp_path / "one")
    prepare(application, log)
    task = worker(application, log)
    for number in range(2):
        feed(log, [("a", str(number))])
        run_to_end(task, log)
    task.close()
    topic = changelog_topic("app", "plain")
    log.delete_topic(topic)
    with pytest.raises(IncompatibleStateError, match=f"{topic}' is gone.*penstock reset"):
        prepare(application, log)
    log.create_topic(topic, 1, {"cleanup.policy": "compact"}, internal=True)
    # Neither the copy that has the state nor one without goes on.
    with pytest.raises(ChangelogError, match=f"lost records: {topic}-0.*penstock reset"):
        worker(application, log).run_batch({INPUT: 2}, 0)
        feed(log, [("a", "more")])
        run_to_end(worker(application, log), log)
    with pytest.raises(ChangelogError, match=f"lost records: {topic}-0.*penstock reset"):
        worker(make(tmp_path / "two"), log).run_batch({}, 0)


def test_records_without_a_commit_are_an_error(log: Log, tmp_path: Path) -> None:
    """Positions that a broker forgot must not become a fresh start on an old state."""
    log.create_topic("in", 1)
    application = make(tmp_path)
    prepare(application, log)
    task = worker(application, log)
    feed(log, [("a", "1")])
    run_to_end(task, log)
    task.close()
    log.delete_commits("app")
    with pytest.raises(ChangelogError, match="no commit.*app-plain-changelog-0.*penstock reset"):
        worker(application, log).run_batch({}, 0)


def test_topics_that_do_not_fit_are_refused(log: Log, tmp_path: Path) -> None:
    log.create_topic("in", 1)
    log.create_topic(changelog_topic("app", "plain"), 2, {"cleanup.policy": "compact"}, internal=True)
    with pytest.raises(IncompatibleStateError, match="app-plain-changelog.*2 partitions.*1 tasks"):
        prepare(make(tmp_path), log)
    log.delete_topic(changelog_topic("app", "plain"))
    log.create_topic(changelog_topic("app", "plain"), 1, internal=True)
    with pytest.raises(IncompatibleStateError, match="not compacted alone"):
        prepare(make(tmp_path), log)


def test_another_changelog_before_is_refused(log: Log, tmp_path: Path) -> None:
    """Its versions lead nowhere in this one."""
    log.create_topic("in", 1)
    before = make(tmp_path / "one", changelog="directory:changelog")
    prepare(before, log)
    task = worker(before, log)
    feed(log, [("a", "1")])
    run_to_end(task, log)
    task.close()
    after = make(tmp_path / "two")
    with pytest.raises(IncompatibleStateError, match="changelog 'directory'.*is 'topic:' now"):
        prepare(after, log)
    for store in ("plain", "stamped", "expiring"):
        log.create_topic(changelog_topic("app", store), 1, {"cleanup.policy": "compact"}, internal=True)
    with pytest.raises(ChangelogError, match="not written with the 'topic' changelog"):
        worker(after, log).run_batch({}, 0)


def test_a_reset_that_was_killed_leaves_no_state(log: Log, tmp_path: Path) -> None:
    """It had set the positions, and not deleted the topics: what is in them is of another life."""
    log.create_topic("in", 1)
    application = make(tmp_path / "one")
    prepare(application, log)
    task = worker(application, log)
    feed(log, [("a", "1"), ("b", "2")])
    run_to_end(task, log)
    task.close()
    topics = [TopicPartition(changelog_topic("app", store), 0) for store in ("plain", "stamped", "expiring")]
    log.set_positions("app", {INPUT: 1, **log.end_offsets(topics)})
    prepare(application, log)
    task = worker(application, log)
    run_to_end(task, log)
    assert contents(task)["plain"] == {"b": "2"}
    task.close()
    elsewhere = worker(make(tmp_path / "two"), log)
    elsewhere.run_batch({}, 0)
    assert contents(elsewhere)["plain"] == {"b": "2"}
    elsewhere.close()


def test_a_damaged_entry_is_named(log: Log, tmp_path: Path) -> None:
    log.create_topic("in", 1)
    application = make(tmp_path)
    prepare(application, log)
    first = worker(application, log)
    feed(log, [("a", "1")], 10)
    run_to_end(first, log)
    first.close()
    topic = changelog_topic("app", "stamped")
    header = ("__penstock.timestamped", b"short")
    log.append(OutputBatch(topic, [b"somebody"], [b"else"], [1], [(header,)]))
    second = worker(make(tmp_path / "two"), log)
    with pytest.raises(ChangelogError, match=f"'{topic}', partition 0: the entry of key b'somebody'.*penstock reset"):
        second.run_batch({}, 0)
    second.close()


HOUR = 3_600
AGES = [
    # hours since the copy's version, since it was seen to be the last one, from the reader's clock to the task's
    (11, None, 0, True),
    (13, None, 0, False),
    (13, 0, 0, True),
    (13, 11, 0, True),
    (13, 12, 0, False),
    (13, 13, 0, False),
    (11, 13, 0, True),
    (0, 0, 13, True),
    (13, 0, 11, True),
    (13, 0, 13, False),
    (13, 0, -13, True),
    (0, None, -13, False),
]


@pytest.mark.parametrize(("age", "seen", "task_is_ahead", "expected"), AGES)
def test_a_copy_is_caught_up_while_the_topic_has_all_tombstones_behind_it(
    age: int, seen: int | None, task_is_ahead: int, expected: bool
) -> None:
    """Those are younger than the version, and than the time at which it was seen to be the last one."""
    log, topic = MemoryLog(), changelog_topic("app", "s")
    log.create_topic(topic, 1, TopicChangelog.topic_config)
    changelog = TopicChangelog("", "app", "0_0", log=log, stores={"s": KeptStore("memory")})
    clock = ManualClock(1_000 * HOUR * 1_000)
    changelog.world = World(clock=clock)
    versions: list[str] = []
    for number in range(2):
        suffix = changelog.version_suffix(versions[-1] if versions else None)
        versions.append(f"{number:012d}-00000000_00c0ffee{suffix}")
        for batch in changelog.records({"s": [(b"k", PLAIN + b"%d" % number)]}):
            log.append(batch)
        clock.advance(f"{age}h")
    clock.advance(timedelta(hours=-age - task_is_ahead))  # the last version is of this moment
    changelog.last_seen = {versions[0]: None if seen is None else seen * HOUR}.get
    found = changelog.restore(versions[1], versions[0])
    assert found.base == (versions[0] if expected else None)
    changelog.last_seen = None
    assert changelog.restore(versions[1], versions[0]).base == (
        versions[0] if age < 12 and task_is_ahead >= 0 else None
    )
