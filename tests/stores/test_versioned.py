"""Versioned stores answer as a list of all versions ever put would, whatever is kept, committed, dropped or freed."""

from __future__ import annotations

import itertools
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from penstock.errors import ConfigError, SerdeError, StoreError
from penstock.plugins.changelogs.topic import decode, encode
from penstock.record import RecordBatch, TopicPartition
from penstock.store import Change, StoreBackend, StoreBackendFactory
from penstock.store.kinds.versioned import (
    NOT_PUT,
    VALID_TO_UNDEFINED,
    VersionedKeyValueStore,
    VersionedRecord,
    VersionedStoreSpec,
    versioned_store,
)
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.kinds import plain
from penstock.stores.kinds import versioned as versioned_module
from penstock.stores.kinds.versioned import META_KEY, VersionedTopicRows
from penstock.stores.lmdb import LmdbBackend
from penstock.stores.memory import MemoryBackend
from penstock.stores.rows.escaping import escaped, unescaped

from ..rotation import examples
from .context import SERDES, TestContext

BACKENDS: dict[str, StoreBackendFactory] = {"memory": MemoryBackend, "lmdb": LmdbBackend}
KEYS: dict[str | None, list[Any]] = {
    None: ["", "a", "ab", 1, True, 1.0, (1, "a"), b"\x00", b"", "\x00", "x" * 300],
    "bytes": [b"", b"\x00", b"\x00\x00", b"\x00\xff", b"a", b"a\x00", b"a\x00\x00", b"\xff" * 3],
}
VALUES: list[Any] = [1, 2, "text", "long" * 100, [1, [2]], {"a": 1}, 2.5]


class Context(TestContext):
    """Counts what is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.late = 0

    def dropped(self, reason: str, count: int = 1) -> None:
        assert reason == "expired"
        self.late += count


class Model:
    """What the documentation says, from a list of all versions."""

    def __init__(self) -> None:
        self.versions: dict[bytes, dict[int, Any]] = {}
        self.newest = self.bound = -1

    def copy(self) -> Model:
        copied = Model()
        copied.versions = {key: dict(versions) for key, versions in self.versions.items()}
        copied.newest, copied.bound = self.newest, self.bound
        return copied

    def is_late(self, timestamp: int, grace: int) -> bool:
        return timestamp < self.newest - grace or timestamp < self.bound

    def put(self, key: bytes, value: Any, timestamp: int, history: int) -> None:
        self.versions.setdefault(key, {})[timestamp] = value
        self.newest = max(self.newest, timestamp)
        self.bound = max(self.bound, self.newest - history)

    def valid(self, key: bytes) -> list[VersionedRecord]:
        """Return the versions that are not gone, the latest first, deletions included."""
        found: list[VersionedRecord] = []
        valid_to = VALID_TO_UNDEFINED
        for timestamp, value in sorted(self.versions.get(key, {}).items(), reverse=True):
            if valid_to == VALID_TO_UNDEFINED or valid_to > self.bound:
                found.append(VersionedRecord(value, timestamp, valid_to))
            valid_to = timestamp
        return found

    def at(self, key: bytes, time: int) -> VersionedRecord | None:
        for version in self.valid(key):
            if version.timestamp <= time:
                is_valid = version.valid_to == VALID_TO_UNDEFINED or time >= self.bound
                return version if is_valid and version.value is not None else None
        return None

    def between(self, key: bytes, first: int, last: int) -> list[tuple[int, VersionedRecord]]:
        return [
            (version.timestamp, version)
            for version in self.valid(key)
            if first <= last
            and version.timestamp <= last
            and (version.valid_to == VALID_TO_UNDEFINED or version.valid_to > first)
            and version.value is not None
        ]


class Versioned(RuleBasedStateMachine):
    """A versioned store over all layers, beside the model: what is committed, and what is seen."""

    backend_name: ClassVar[str]
    key_serde: ClassVar[str | None]

    @initialize(data=st.data(), history=st.sampled_from([0, 10, 30]), grace=st.sampled_from([0, 5, 30, 30]))
    def start(self, data: st.DataObject, history: int, grace: int) -> None:
        few = st.lists(st.sampled_from(KEYS[self.key_serde]), min_size=1, max_size=3)
        self.few_keys = data.draw(few, "keys")
        self.temporary = tempfile.TemporaryDirectory()
        self.context = Context()
        self.history, self.grace = history, min(history, grace)
        self.longest = history
        self.committed = Model()
        self.seen = Model()
        self.keys = SERDES[self.key_serde]()
        self.late = 0
        self.deltas: list[list[Change]] = []
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "backend"):
            self.backend.destroy()
            self.temporary.cleanup()

    def open(self) -> None:
        self.backend: StoreBackend = BACKENDS[self.backend_name](Path(self.temporary.name), ["s", "index"])
        self.buffer, self.index = CommitBuffer(self.backend, "s"), CommitBuffer(self.backend, "index")
        self.context.given_index = self.index
        self.build()

    def build(self) -> None:
        spec = VersionedStoreSpec("s", self.history, self.grace, self.key_serde)
        store = spec.build(self.buffer, self.context)
        assert isinstance(store, VersionedKeyValueStore)
        self.store: VersionedKeyValueStore[Any, Any] = store

    def drawn(self, data: st.DataObject) -> tuple[Any, bytes]:
        key = data.draw(st.sampled_from(self.few_keys), "key")
        return key, self.keys.serialize(key)

    def time(self, data: st.DataObject) -> int:
        """Return a time around the newest one, mostly."""
        newest = max(0, self.seen.newest)
        near = st.integers(-self.history - 2, 6).map(lambda delta: max(0, newest + delta))
        return data.draw(near | near | st.sampled_from([0, newest, newest + 1, newest + 100]), "time")

    @rule(data=st.data(), value=st.sampled_from(VALUES) | st.none())
    def put(self, data: st.DataObject, value: Any) -> None:
        self.put_one(data, value)

    def put_one(self, data: st.DataObject, value: Any) -> None:
        (key, raw), timestamp = self.drawn(data), self.time(data)
        answer = self.store.put(key, value, timestamp)
        if self.seen.is_late(timestamp, self.grace):
            self.late += 1
            assert answer == NOT_PUT
        else:
            self.seen.put(raw, value, timestamp, self.history)
            newer = [other for other in self.seen.versions[raw] if other > timestamp]
            assert answer == min(newer, default=VALID_TO_UNDEFINED)
        assert self.context.late == self.late
        if isinstance(value, list):
            assert value == [1, [2]]

    @rule(data=st.data(), values=st.lists(st.sampled_from([1, 2, None]), min_size=2, max_size=6))
    def put_several(self, data: st.DataObject, values: list[Any]) -> None:
        for value in values:
            self.put_one(data, value)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        (key, raw), timestamp = self.drawn(data), self.time(data)
        answer = self.store.delete(key, timestamp)
        if self.seen.is_late(timestamp, self.grace):
            self.late += 1
            assert answer is None
        else:
            assert answer == self.seen.at(raw, timestamp)
            self.seen.put(raw, None, timestamp, self.history)

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        key, raw = self.drawn(data)
        latest = self.seen.valid(raw)[:1]
        expected = latest[0] if latest and latest[0].value is not None else None
        found = self.store.get(key)
        assert found == expected
        if found is not None and isinstance(found.value, list):
            found.value.append("spoiled")
        assert self.store.get(key) == expected

    @rule(data=st.data())
    def get_as_of(self, data: st.DataObject) -> None:
        (key, raw), time = self.drawn(data), self.time(data)
        time = data.draw(st.sampled_from([time, time, time, -1, 2**63, -(2**70)]))
        assert self.store.get(key, time) == self.seen.at(raw, time)

    @rule(data=st.data())
    def get_between(self, data: st.DataObject) -> None:
        (key, raw), first, last = self.drawn(data), self.time(data), self.time(data)
        first = data.draw(st.sampled_from([first, first, -5]))
        last = data.draw(st.sampled_from([last, last, last, 2**63]))
        with self.store.get(key, first, last) as versions:
            assert list(versions) == self.seen.between(raw, first, last)

    @rule()
    def commit(self) -> None:
        self.store.flush()
        version = self.backend.version()
        delta = self.buffer.changes()
        assert self.buffer.topic_changes(delta) == delta, "what is freed writes nothing into a changelog topic"
        rows, index = self.buffer.local_changes(delta), self.index.local_changes(self.index.changes())
        self.backend.write({"s": rows, "index": index}, version, (version or "") + "x")
        self.deltas.append(delta)
        self.drop()
        self.committed = self.seen.copy()

    def drop(self) -> None:
        self.buffer.clear()
        self.index.clear()

    @rule()
    def fail(self) -> None:
        self.store.discard()
        self.drop()
        self.seen = self.committed.copy()

    @rule()
    def fail_after_flush(self) -> None:
        self.store.flush()
        self.fail()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.backend.close()
        self.seen = self.committed.copy()
        self.open()

    @rule(in_topic=st.booleans())
    def restore(self, in_topic: bool) -> None:
        """The changelog has everything that was put, also what this host has freed."""
        form = VersionedTopicRows({})
        rows: dict[bytes, bytes | None] = {key: None for key, _ in self.backend.range("s")}
        for delta in self.deltas:
            if in_topic:
                records = (form.record_of(*change) for change in delta)
                rows.update(form.row_of(key, data, 1 if at is None else at) for key, data, at in records)
            else:
                rows.update(delta)
        version = self.backend.version()
        self.backend.write({"s": sorted(rows.items()), "index": [(b"", None)]}, version, (version or "") + "x")
        self.fail()

    @rule()
    def wait_for_expiry(self) -> None:
        """After some commits nothing is left that has been gone for longer than a bucket, and the index fits."""
        for _ in range(30):
            self.commit()
        for raw in self.seen.versions:
            start = escaped(raw)
            kept = [int.from_bytes(row[-8:]) for row, _ in self.backend.range("s", start, start + b"\xff" * 9)]
            valid = [version.timestamp for version in self.seen.valid(raw)]
            limit = self.seen.bound - self.longest // 4 - 1
            assert {each.timestamp for each in self.seen.valid(raw) if each.value is not None} <= set(kept)
            for older, newer in itertools.pairwise(sorted({*kept, *valid})):
                assert older not in kept or newer > limit, (kept, valid)
            old_deletions = [at for at, value in self.seen.versions[raw].items() if value is None and at <= limit]
            assert not set(old_deletions) & set(kept)
        for row, _ in self.backend.range("index", b"\x01"):
            assert row[9:] in self.seen.versions

    @rule(history=st.sampled_from([0, 10, 30, 60]))
    def another_program(self, history: int) -> None:
        """A later program may have another retention; what one has dropped does not come back with the next."""
        self.commit()
        self.history = history
        self.longest = max(self.longest, history)
        self.grace = min(self.grace, history)
        self.build()
        self.seen.bound = max(self.seen.bound, self.seen.newest - history)
        self.commit()


@pytest.mark.parametrize("key_serde", [None, "bytes"])
@pytest.mark.parametrize("backend", ["memory", "lmdb"])
def test_any_history(monkeypatch: pytest.MonkeyPatch, backend: str, key_serde: str | None) -> None:
    monkeypatch.setattr(plain, "CACHED_ENTRIES", 4)  # entries are evicted all the time
    monkeypatch.setattr(versioned_module, "_FREED_ROWS", 3)

    class Machine(Versioned):
        pass

    Machine.backend_name, Machine.key_serde = backend, key_serde
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples(60 if backend == "memory" else 15),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def build(tmp_path: Path, **spec: Any) -> tuple[VersionedKeyValueStore[Any, Any], CommitBuffer]:
    backend = MemoryBackend(tmp_path, ["prices", "index"])
    buffer, context = CommitBuffer(backend, "prices"), Context()
    context.given_index = CommitBuffer(backend, "index")
    options = {"history_retention_ms": 100, "grace_ms": 100, **spec}
    store = VersionedStoreSpec("prices", **options).build(buffer, context)
    assert isinstance(store, VersionedKeyValueStore)
    return store, buffer


def commit(buffer: CommitBuffer, store: VersionedKeyValueStore[Any, Any]) -> None:
    store.flush()
    backend = buffer._backend
    backend.write(
        {buffer.name: buffer.local_changes(buffer.changes())}, backend.version(), (backend.version() or "") + "x"
    )
    buffer.clear()


def test_wrong_use_names_the_store_and_changes_nothing(tmp_path: Path) -> None:
    store, buffer = build(tmp_path, key_serde="str", value_serde="int")
    fraction: Any = 1.5
    for use, message in (
        (lambda: store.put(None, 1, 5), "key of None"),
        (lambda: store.get(None), "key of None"),
        (lambda: store.get(None, 5), "key of None"),
        (lambda: store.delete(None, 5), "key of None"),
        (lambda: store.put("a", 1, -1), "timestamp from 0"),
        (lambda: store.put("a", 1, 2**63), "timestamp from 0"),
        (lambda: store.put("a", 1, fraction), "timestamp as a whole number"),
        (lambda: store.put("a", 1, True), "timestamp as a whole number"),
        (lambda: store.delete("a", fraction), "timestamp as a whole number"),
        (lambda: store.get("a", fraction), "as_of as a whole number"),
        (lambda: store.get("a", 1, fraction), "to as a whole number"),
        (lambda: store.get("a", to=1), "needs `as_of`"),  # type: ignore[call-overload]
    ):
        with pytest.raises(StoreError, match=f"'prices'.*{message}"):
            use()
    with pytest.raises(SerdeError, match="'prices'.*the value of"):
        store.put("a", 2**63, 5)
    with pytest.raises(SerdeError, match="'prices'.*the key"):
        store.put(5, 1, 5)
    store.flush()
    assert [each for each in buffer.changes() if each[0]] == []


def test_wrong_durations_name_the_store_and_the_option() -> None:
    bare: Any = 1000
    for wrong, message in ((timedelta(seconds=-1), "0 or more"), (bare, "a timedelta or text")):
        with pytest.raises(ConfigError, match=f"history_retention of store 'prices': .*{message}"):
            versioned_store("prices", history_retention=wrong)
        with pytest.raises(ConfigError, match=f"grace of store 'prices': .*{message}"):
            versioned_store("prices", history_retention="1h", grace=wrong)
    assert versioned_store("prices", history_retention="0ms", grace="1h").grace_ms == 0
    with pytest.raises(StoreError, match="versioned_store: .*'a/b'"):
        versioned_store("a/b", history_retention="1h")


def test_an_out_of_order_version_puts_the_latest_one_last_in_the_changelog(tmp_path: Path) -> None:
    """A changelog topic is compacted: the last record of a key stays."""
    store, buffer = build(tmp_path)
    store.put("a", "old", 10)
    store.put("a", "new", 20)
    commit(buffer, store)
    store.put("a", "between", 15)
    rows = [row for row, _ in buffer.changes()]
    assert [int.from_bytes(row[-8:]) for row in rows] == [15, 20]


def test_gone_versions_are_freed_when_a_key_is_not_put_again(tmp_path: Path) -> None:
    store, buffer = build(tmp_path)
    store.put("a", "new", 60)
    store.put("a", "old", 10)
    store.put("b", None, 20)
    store.put("c", "only", 20)
    commit(buffer, store)
    store.put("d", "newest", 60 + 100 + 25)
    commit(buffer, store)
    rows = [unescaped(row)[0][1:] for row, _ in buffer.range() if row]
    assert rows == [b"a", b"c", b"d"]
    assert store.get("a") == VersionedRecord("new", 60)


ROWS = st.tuples(
    st.sampled_from([*KEYS["bytes"], META_KEY, META_KEY + b"\x00", META_KEY + b"x", META_KEY[:-1]]),
    st.sampled_from([0, 1, 2, 10**12, 2**63 - 1]),
    st.sampled_from([b"", b"\x00", b"\x00value", None]),
)


@given(st.lists(ROWS, max_size=5), st.booleans())
def test_rows_come_back_from_a_changelog_topic(drawn: list[tuple[bytes, int, bytes | None]], has_meta: bool) -> None:
    rows = [(escaped(key) + timestamp.to_bytes(8), data) for key, timestamp, data in drawn]
    if has_meta:
        rows.append((b"", b"\x00" + bytes(16)))
    form = VersionedTopicRows({})
    batch = encode(rows, TopicPartition("topic", 0), False, 77, form)
    timestamps = list(batch.timestamps)
    assert all(timestamp >= 1 for timestamp in timestamps)
    read = RecordBatch("topic", 0, range(len(rows)), batch.keys, batch.values, timestamps, batch.headers, len(rows))
    assert list(decode(read, False, form)) == rows


def test_a_changelog_topic_is_laid_out_as_kafka_streams_does() -> None:
    form = VersionedTopicRows({})
    assert form.record_of(escaped(b"a\x00") + (5).to_bytes(8), b"\x00v") == (b"a\x00", b"\x00v", 5)
    assert form.record_of(escaped(b"a\x00") + (6).to_bytes(8), b"") == (b"a\x00", None, 6)
