"""Window and session stores through both changelogs: another host restores what was committed, and hides the same."""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Application, Processor, Record, Topology, ValueAndTimestamp, Windowed, session_store, window_store
from penstock.log import Log
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.contracts.log_tests import read
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition
from penstock.stores.rows import retention
from penstock.support.names import changelog_topic

INPUT = TopicPartition("in", 0)
STORES = ("windows", "stamped", "duplicates", "sessions")
RETENTION = 40


class Keep(Processor):
    """Puts each value into a store of each kind at the record's time; an empty one is a deletion."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.windows, self.stamped, self.duplicates, self.sessions = map(context.get_store, STORES)

    def process(self, record: Record) -> None:
        key, value, at = record.key, record.value or None, record.timestamp
        self.windows.put(key, value, at)
        self.stamped.put(key, None if value is None else ValueAndTimestamp(value, at + 5), at - at % 5)
        self.duplicates.put(key, value, at - at % 5)
        start, end = at, at
        for session, _ in list(self.sessions.find_sessions(key, at - 4, at + 4)):
            start, end = min(start, session.start), max(end, session.end)
            self.sessions.remove(session)
        self.sessions.put(Windowed(key, start, end), value)


def make(directory: Path, changelog: str, **more: Any) -> Application:
    same: Any = {"retention": f"{RETENTION}ms", "key_serde": "str", "value_serde": "str"}
    stores = [
        window_store("windows", window_size="5ms", **same),
        window_store("stamped", window_size="5ms", timestamped=True, **same),
        window_store("duplicates", window_size="5ms", retain_duplicates=True, **same),
        session_store("sessions", **same),
    ]
    topology = Topology().add_source("in", "in").add_processor("keep", Keep, "in", stores=stores)
    location = "topic:" if changelog == "topic" else f"directory:{directory.parent / 'changelog'}"
    given = {"log": "memory:x", "changelog": location, "data_dir": str(directory), "store_backend": "memory", **more}
    return Application("app", topology, **given)


def worker(application: Application, log: Log) -> TaskWorker:
    return TaskWorker(application, TaskId(0, 0), [INPUT], log, resources=ProcessResources())


def run(task: TaskWorker, log: Log, rows: list[tuple[str, str, int]]) -> None:
    keys: list[bytes | None] = [key.encode() for key, _, _ in rows]
    log.append(OutputBatch("in", keys, [value.encode() for _, value, _ in rows], [at for _, _, at in rows]))
    task.run_batch(log.end_offsets([INPUT]), 0)


def contents(task: TaskWorker) -> dict[str, list[Any]]:
    assert task.task is not None
    found = {}
    for name, store in task.task.stores.items():
        scan: Any = getattr(store, "all", None) or (lambda store=store: store.fetch_range(None, None))
        with scan() as entries:
            found[name] = list(entries)
    return found


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "a\0", "ab", ""]), st.sampled_from(["", "x", "y"]), st.integers(-60, 30)),
    min_size=1,
    max_size=4,
)
"""Keys, values, and times relative to the newest so far."""


@pytest.mark.parametrize("changelog", ["topic", "directory"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(ROWS, st.sampled_from(["stay", "here", "elsewhere", "anew"])), max_size=8))
def test_any_moves_between_hosts(tmp_path_factory: pytest.TempPathFactory, changelog: str, steps: list[Any]) -> None:
    """Content is that of a task that never moved; a copy left behind is caught up, a new one restored."""
    base = tmp_path_factory.mktemp("moves")
    logs = [MemoryLog(), MemoryLog()]
    for log in logs:
        log.create_topic("in", 1)
    (base / "moving").mkdir()
    moving = [make(base / "moving" / each, changelog, store_backend="lmdb") for each in ("one", "two")]
    staying = make(base / "staying" / "one", changelog)
    (base / "staying").mkdir()
    prepare(moving[0], logs[0])
    prepare(staying, logs[1])
    at = newest = 0
    task, still = worker(moving[0], logs[0]), worker(staying, logs[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "_SWEPT_ENTRIES", 2)
        for number, (rows, move) in enumerate(steps):
            timed = [(key, value, max(0, newest + later)) for key, value, later in rows]
            newest = max(newest, *(time for _, _, time in timed))
            run(task, logs[0], timed)
            run(still, logs[1], timed)
            expected = contents(still)
            assert contents(task) == expected
            if move == "stay":
                continue
            task.close()
            if move == "anew":
                moving.append(make(base / "moving" / f"host{number}", changelog, store_backend="lmdb"))
                at = len(moving) - 1
            else:
                at ^= move == "elsewhere" and at < 2
            task = worker(moving[at], logs[0])
            task.run_batch({}, 0)
            assert contents(task) == expected
    task.close()
    still.close()


@pytest.mark.parametrize("changelog", ["topic", "directory"])
def test_what_was_freed_here_is_hidden_elsewhere(tmp_path: Path, changelog: str) -> None:
    """Freeing is not in the changelog; the store's own row is, and says what has expired. Times may be any."""
    log = MemoryLog()
    log.create_topic("in", 1)
    application = make(tmp_path / "one", changelog)
    prepare(application, log)
    first = worker(application, log)
    late = 2**63 - 100
    for at in (3, 20, 90, 200, late):
        run(first, log, [("a", "x", at), ("b", "y", at)])
    expected = contents(first)
    assert [key.start for key, _ in expected["windows"]] == [late, late]
    first.close()
    second = worker(make(tmp_path / "two", changelog), log)
    second.run_batch({}, 0)
    assert contents(second) == expected
    run(second, log, [("a", "late", 150)])
    assert contents(second) == expected
    second.close()


def test_a_topic_changelog_has_the_keys_of_kafka_streams(tmp_path: Path) -> None:
    """Window: key, start, sequence number; session: key, end, start. The record's time is the window's or session's."""
    log = MemoryLog()
    log.create_topic("in", 1)
    application = make(tmp_path, "topic")
    prepare(application, log)
    task = worker(application, log)
    run(task, log, [("a\0b", "x", 12), ("a\0b", "y", 12)])
    run(task, log, [("a\0b", "", 12)])
    task.close()
    key = b"a\0b"
    found = {
        store: [
            (each.key, each.value, each.timestamp)
            for each in read(log, TopicPartition(changelog_topic("app", store), 0))
            if each.key
        ]
        for store in STORES
    }
    start, window = pack(">q", 12), pack(">q", 10)
    assert found == {
        "windows": [(key + start + pack(">i", 0), b"y", 12), (key + start + pack(">i", 0), None, 12)],
        "stamped": [(key + window + pack(">i", 0), b"y", 17), (key + window + pack(">i", 0), None, 10)],
        "duplicates": [(key + window + pack(">i", 1), b"x", 10), (key + window + pack(">i", 2), b"y", 10)],
        "sessions": [(key + start + start, b"y", 12), (key + start + start, None, 12)],
    }
    assert log.topics()[changelog_topic("app", "windows")].config["cleanup.policy"] == "compact"


def test_what_was_freed_leaves_a_topic_changelog_too(tmp_path: Path) -> None:
    """As tombstones of the commit that freed it."""
    log = MemoryLog()
    log.create_topic("in", 1)
    application = make(tmp_path, "topic", store_backend="lmdb")
    prepare(application, log)
    task = worker(application, log)
    for at in range(0, 20 * RETENTION, 5):
        run(task, log, [("a", "x", at)])
    expected = contents(task)
    task.close()
    for store in STORES:
        left: dict[bytes | None, bytes | None] = {}
        for each in read(log, TopicPartition(changelog_topic("app", store), 0)):
            left[each.key] = each.value
        rows = [key for key, value in left.items() if key and value is not None]
        assert len(expected[store]) <= len(rows) <= 2 * RETENTION // 5
