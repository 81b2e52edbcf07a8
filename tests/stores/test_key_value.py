"""Typed key-value stores answer as a dict of serialized keys would, whatever is held, flushed, committed or dropped."""

from __future__ import annotations

import copy
import enum
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from penstock.errors import SerdeError, StoreError
from penstock.plugins.serdes.msgpack import MsgpackSerde
from penstock.serde import Serde
from penstock.store import StoreBackend, StoreBackendFactory, ValueAndTimestamp, ValueTimestampHeaders
from penstock.store.kinds.key_value import KeyValueStore, KeyValueStoreSpec
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.kinds import plain
from penstock.stores.lmdb import LmdbBackend
from penstock.stores.memory import MemoryBackend

from .context import SERDES, TestContext


class Colour(enum.StrEnum):
    RED = "red"


class Grade(enum.IntEnum):
    ONE = 1


KEYS: dict[str | None, st.SearchStrategy[Any]] = {
    None: st.sampled_from(
        [
            "",
            "a",
            "ab",
            "b",
            "red",
            "1",
            "x" * 300,
            b"",
            b"a",
            b"1",
            0,
            1,
            -1,
            2,
            1.0,
            0.0,
            True,
            False,
            (1, "a"),
            (True, "a"),
            2**70,
        ]
    ),
    "str": st.sampled_from(["", "a", "ab", "abc", "b", "ä", "red", Colour.RED, "x" * 300]),
    "int": st.sampled_from([0, 1, 2, 255, 256, 257, -1, -2, 2**63 - 1, Grade.ONE]),
    "float": st.sampled_from([0.0, 1, 1.0, 2.5, -1, -1.0]),
    "bytes": st.sampled_from([b"", b"a", b"ab", b"b", bytearray(b"a"), memoryview(b"ab"), b"x" * 600]),
}
VALUES: dict[str | None, st.SearchStrategy[Any]] = {
    None: st.sampled_from(
        [
            1,
            2,
            2**70,
            True,
            1.0,
            2.5,
            float("nan"),
            "",
            "text",
            "long" * 100,
            b"bytes",
            b"long" * 100,
            [1, [2]],
            {"a": [1]},
            (1, 2),
        ]
    ),
    "str": st.sampled_from(["", "a", "long" * 100, Colour.RED]),
    "int": st.sampled_from([0, 1, 2, -1, 2**63 - 1, Grade.ONE]),
    "float": st.sampled_from([0.0, 1, 1.5]),
    "bytes": st.sampled_from([b"", b"a", b"long" * 100, bytearray(b"a")]),
}
BACKENDS: dict[str, StoreBackendFactory] = {"memory": MemoryBackend, "lmdb": LmdbBackend}


HEADER = st.tuples(st.sampled_from(["", "a", "ä"]), st.sampled_from([None, b"", b"x"]))
HEADERS = st.lists(HEADER, max_size=2).map(tuple)


class Typed(RuleBasedStateMachine):
    """A typed store over all layers, beside {serialized key: value}: what is committed, and what is seen."""

    key_serde: ClassVar[str | None]
    value_serde: ClassVar[str | None]
    timestamped: ClassVar[bool | str]
    """"headers": values have headers as well."""
    backend_name: ClassVar[str]
    ttl_ms: ClassVar[int | None]

    @initialize()
    def start(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.context = TestContext()
        self.keys: Serde[Any] = SERDES[self.key_serde]()
        self.values: Serde[Any] = SERDES[self.value_serde]()
        self.committed: dict[bytes, Any] = {}
        self.seen: dict[bytes, Any] = {}
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "backend"):
            self.backend.destroy()
            self.temporary.cleanup()

    def open(self) -> None:
        self.backend: StoreBackend = BACKENDS[self.backend_name](Path(self.temporary.name), ["s", "i"])
        self.buffer, self.context.given_index = CommitBuffer(self.backend, "s"), CommitBuffer(self.backend, "i")
        spec = KeyValueStoreSpec(
            "s",
            self.key_serde,
            self.value_serde,
            timestamped=self.timestamped is True,
            headers=self.timestamped == "headers",
            ttl_ms=self.ttl_ms,
        )
        store = spec.build(self.buffer, self.context)
        assert isinstance(store, KeyValueStore)
        self.store: KeyValueStore[Any, Any] = store

    # -- what is expected

    def stored(self, value: Any) -> Any:
        """Return what a value is after a trip through its serde."""
        if self.timestamped == "headers":
            return ValueTimestampHeaders(self.values.deserialize(self.values.serialize(value[0])), *value[1:])
        if self.timestamped:
            return ValueAndTimestamp(self.values.deserialize(self.values.serialize(value[0])), value[1])
        return self.values.deserialize(self.values.serialize(value))

    def drawn(self, data: st.DataObject) -> tuple[Any, bytes]:
        key = data.draw(KEYS[self.key_serde], "key")
        return key, self.keys.serialize(key)

    def value(self, data: st.DataObject, *, none: bool = True) -> Any:
        values = VALUES[self.value_serde]
        if self.timestamped:
            timestamps = st.sampled_from([0, 5, -1, 2**63 - 1, -(2**63)])
            if self.timestamped == "headers":
                values = st.builds(ValueTimestampHeaders, values, timestamps, HEADERS)
            else:
                values = st.builds(ValueAndTimestamp, values, timestamps)
        return copy.deepcopy(data.draw(values | st.none() if none else values, "value"))

    def note(self, raw: bytes, value: Any) -> None:
        self.seen.pop(raw, None)
        if value is not None:
            self.seen[raw] = self.stored(value)

    def same(self, found: Any, expected: Any) -> None:
        content, wanted = (found[0], expected[0]) if self.timestamped and expected is not None else (found, expected)
        if content != wanted or repr(found) != repr(expected):
            # An enum or a bytearray may come back as it was put or as its serde gives it back; these are equal.
            assert content == wanted or (content != content and wanted != wanted), (found, expected)
            assert type(found) is type(expected)

    @staticmethod
    def spoil(value: Any) -> None:
        """Change a value in place: nothing in the store may notice."""
        if isinstance(value, ValueAndTimestamp | ValueTimestampHeaders):
            value = value.value
        if isinstance(value, list):
            value.append("spoiled")
        elif isinstance(value, dict):
            value["spoiled"] = True
        elif isinstance(value, bytearray):
            value += b"spoiled"

    # -- single entries

    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        key, raw = self.drawn(data)
        value = self.value(data)
        self.store.put(key, value)
        self.note(raw, value)
        self.spoil(value)

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        key, raw = self.drawn(data)
        found = self.store.get(key)
        self.same(found, self.seen.get(raw))
        self.spoil(found)
        self.same(self.store.get(key), self.seen.get(raw))

    @rule(data=st.data(), times=st.integers(1, 3))
    def count_up(self, data: st.DataObject, times: int) -> None:
        """Get and put of one key, over and over."""
        key, raw = self.drawn(data)
        for _ in range(times):
            self.same(self.store.get(key), self.seen.get(raw))
            value = self.value(data, none=False)
            self.store.put(key, value)
            self.note(raw, value)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key, raw = self.drawn(data)
        self.same(self.store.delete(key), self.seen.pop(raw, None))

    @rule(data=st.data())
    def put_if_absent(self, data: st.DataObject) -> None:
        key, raw = self.drawn(data)
        value = self.value(data)
        self.same(self.store.put_if_absent(key, value), self.seen.get(raw))
        if raw not in self.seen:
            self.note(raw, value)

    @rule(data=st.data(), count=st.integers(0, 5))
    def put_all(self, data: st.DataObject, count: int) -> None:
        entries = [(*self.drawn(data), self.value(data)) for _ in range(count)]
        self.store.put_all((key, value) for key, _, value in entries)
        for _, raw, value in entries:
            self.note(raw, value)

    # -- scans

    def check_scan(self, found: Iterator[tuple[Any, Any]], expected: list[bytes]) -> None:
        entries = list(found)
        assert [repr(key) for key, _ in entries] == [repr(self.keys.deserialize(raw)) for raw in expected]
        for (_, value), raw in zip(entries, expected, strict=True):
            self.same(value, self.seen[raw])
            self.spoil(value)

    @rule(data=st.data(), open_start=st.booleans(), open_end=st.booleans(), reverse=st.booleans())
    def scan(self, data: st.DataObject, open_start: bool, open_end: bool, reverse: bool) -> None:
        start, low = (None, None) if open_start else self.drawn(data)
        end, high = (None, None) if open_end else self.drawn(data)
        expected = [raw for raw in self.seen if (low is None or raw >= low) and (high is None or raw <= high)]
        scan = self.store.reverse_range if reverse else self.store.range
        self.check_scan(iter(scan(start, end)), sorted(expected, reverse=reverse))

    @rule(reverse=st.booleans())
    def scan_all(self, reverse: bool) -> None:
        with self.store.reverse_all() if reverse else self.store.all() as entries:
            self.check_scan(entries, sorted(self.seen, reverse=reverse))

    @rule(prefix=st.sampled_from([b"", b"a", b"\x00", b"\xff", b"\xa1a", b"x" * 300]))
    def scan_prefix(self, prefix: bytes) -> None:
        expected = sorted(raw for raw in self.seen if raw.startswith(prefix))
        self.check_scan(iter(self.store.prefix_scan(prefix, SERDES["bytes"]())), expected)

    @rule(data=st.data(), reverse=st.booleans())
    def change_while_scanning(self, data: st.DataObject, reverse: bool) -> None:
        """Flush in the middle of a scan, change every second entry that it yields."""
        keys = []
        for number, (key, _) in enumerate(self.store.reverse_all() if reverse else self.store.all()):
            raw = self.keys.serialize(key)
            keys.append(raw)
            if number % 2:
                value = self.value(data)
                self.store.put(key, value)
                self.note(raw, value)
                self.store.flush()
        assert keys == sorted(set(keys), reverse=reverse)

    @rule()
    def count(self) -> None:
        assert self.store.approximate_count() == len(self.seen)

    # -- the commit

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @rule()
    def commit(self) -> None:
        self.store.flush()
        version = self.backend.version()
        self.backend.write({"s": self.buffer.changes()}, version, (version or "") + "x")
        self.buffer.clear()
        self.committed = dict(self.seen)

    @rule()
    def fail(self) -> None:
        self.store.discard()
        self.buffer.clear()
        self.seen = dict(self.committed)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.backend.close()
        self.seen = dict(self.committed)
        self.open()

    @precondition(lambda self: self.ttl_ms is not None)
    @rule(step=st.integers(0, 10))
    def time_passes(self, step: int) -> None:
        self.context.now += step


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
@pytest.mark.parametrize(
    ("key_serde", "value_serde", "timestamped", "ttl_ms"),
    [
        (None, None, False, None),
        (None, None, True, None),
        (None, None, "headers", None),
        ("str", "int", "headers", None),
        ("str", None, "headers", 10**9),
        ("str", "int", False, None),
        ("str", None, True, None),
        ("int", "str", False, None),
        ("float", "float", False, None),
        ("bytes", "bytes", False, None),
        (None, None, False, 10**9),
        ("str", "int", True, 10**9),
    ],
)
def test_any_history(
    monkeypatch: pytest.MonkeyPatch,
    key_serde: str | None,
    value_serde: str | None,
    timestamped: bool | str,
    ttl_ms: int | None,
    backend: str,
) -> None:
    monkeypatch.setattr(plain, "CACHED_ENTRIES", 4)  # entries are evicted all the time

    class Machine(Typed):
        pass

    Machine.key_serde, Machine.value_serde, Machine.timestamped = key_serde, value_serde, timestamped
    Machine.backend_name, Machine.ttl_ms = backend, ttl_ms
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=12 if backend == "memory" else 4,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def build(tmp_path: Path, **spec: Any) -> tuple[KeyValueStore[Any, Any], CommitBuffer, TestContext]:
    context = TestContext()
    buffer = CommitBuffer(MemoryBackend(tmp_path, ["words"]), "words")
    store = KeyValueStoreSpec("words", **spec).build(buffer, context)
    assert isinstance(store, KeyValueStore)
    return store, buffer, context


def test_a_key_of_none_names_the_store(tmp_path: Path) -> None:
    store, buffer, _ = build(tmp_path)
    for use in (
        lambda: store.get(None),
        lambda: store.put(None, 1),
        lambda: store.put(None, None),
        lambda: store.delete(None),
        lambda: store.put_if_absent(None, 1),
        lambda: store.put_all([("a", 1), (None, 1)]),
        lambda: store.prefix_scan(None),
    ):
        with pytest.raises(StoreError, match="'words'.*key of None"):
            use()
    store.flush()
    assert [key for key, _ in buffer.changes()] == [SERDES[None]().serialize("a")]


def test_what_a_serde_refuses_is_refused_at_once(tmp_path: Path) -> None:
    """Not when the commit serializes it, where nobody could tell which record it came from."""
    store, _, _ = build(tmp_path, key_serde="str", value_serde="int")
    store.put("a", 1)
    for key, value in (("a", 2**63), ("a", "text"), ("a", True), ("\ud800", 1), (1, 1), (["a"], 1)):
        with pytest.raises(SerdeError, match="'words'"):
            store.put(key, value)
    wrong: list[Any] = ["\ud800", 1, ["a"], {"a": 1}]
    for each in wrong:
        with pytest.raises(SerdeError, match="'words'"):
            store.get(each)
    store.flush()
    assert list(store.all()) == [("a", 1)]


def test_damaged_bytes_name_the_store_and_the_key(tmp_path: Path) -> None:
    store, buffer, _ = build(tmp_path, key_serde="str", value_serde="int")
    buffer.put(b"short", b"\x00\x01")
    buffer.put(b"odd", b"\x80")
    with pytest.raises(SerdeError, match="'words'.*short"):
        store.get("short")
    with pytest.raises(StoreError, match="'words'.*odd"):
        store.get("odd")
    with pytest.raises(StoreError, match="'words'.*odd"):
        list(store.all())


def test_a_timestamped_store_takes_nothing_else(tmp_path: Path) -> None:
    store, _, _ = build(tmp_path, timestamped=True)
    fraction: Any = 1.5
    for value in (1, (1, 2), ValueAndTimestamp(1, 2**63), ValueAndTimestamp(1, True), ValueAndTimestamp(1, fraction)):
        with pytest.raises(StoreError, match="'words'.*timestamp"):
            store.put("a", value)
    store.put("a", ValueAndTimestamp(1, 5))
    for value in (2, ValueAndTimestamp(2, -(2**63) - 1), ValueAndTimestamp(2, fraction)):
        with pytest.raises(StoreError, match="'words'.*timestamp"):
            store.put("a", value)
    assert store.get("a") == ValueAndTimestamp(1, 5)
    store.put("a", ValueAndTimestamp(None, 6))
    assert store.get("a") is None


def test_a_store_with_headers_takes_nothing_else(tmp_path: Path) -> None:
    store, _, _ = build(tmp_path, headers=True)
    store.put("a", ValueTimestampHeaders(1, 5))
    names = ("\ud800", "__penstock.expiry", 1)
    refused: list[Any] = [[("a", b"")], [["a", b""]], ("a", b""), (("a",),), (("a", "b"),)]
    for wrong in [*refused, *(((name, b""),) for name in names)]:
        with pytest.raises(StoreError, match="'words'.*headers"):
            store.put("a", ValueTimestampHeaders(1, 5, wrong))
    for value in (1, (1, 2, ()), ValueAndTimestamp(1, 2)):
        with pytest.raises(StoreError, match="'words'.*ValueTimestampHeaders"):
            store.put("a", value)
    with pytest.raises(StoreError, match="'words'.*timestamp"):
        store.put("a", ValueTimestampHeaders(1, 2**63))
    assert store.get("a") == ValueTimestampHeaders(1, 5, ())
    store.put("a", ValueTimestampHeaders(None, 6))
    assert store.get("a") is None


def test_headers_may_be_switched_on_and_off(tmp_path: Path) -> None:
    stamped, buffer, context = build(tmp_path, timestamped=True)
    stamped.put("a", ValueAndTimestamp("old", 7))
    stamped.flush()
    headers = KeyValueStoreSpec("words", headers=True).build(buffer, context)
    assert isinstance(headers, KeyValueStore)
    assert headers.get("a") == ValueTimestampHeaders("old", 7)
    headers.put("a", ValueTimestampHeaders("new", 8, (("h", b"x"),)))
    headers.flush()
    stamped.discard()
    assert stamped.get("a") == ValueAndTimestamp("new", 8)


def test_timestamps_may_be_switched_on_and_off(tmp_path: Path) -> None:
    plain, buffer, context = build(tmp_path)
    plain.put("a", "old")
    plain.flush()
    stamped = KeyValueStoreSpec("words", timestamped=True).build(buffer, context)
    assert isinstance(stamped, KeyValueStore)
    assert stamped.get("a") == ValueAndTimestamp("old", -1)
    stamped.put("a", ValueAndTimestamp("new", 7))
    stamped.flush()
    plain.discard()
    assert plain.get("a") == "new"


def test_iterators_end_early_and_by_themselves(tmp_path: Path) -> None:
    store, _, _ = build(tmp_path)
    store.put_all([(f"{number:03}", number) for number in range(100)])
    with store.all() as entries:
        assert next(entries) == ("000", 0)
    assert list(entries) == []
    scan = store.reverse_all()
    assert next(scan) == ("099", 99)
    scan.close()
    scan.close()
    assert list(scan) == []
    assert next(iter(store.range("050", "050"))) == ("050", 50)
    assert list(store.range("051", "050")) == []


def test_what_is_held_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "CACHED_ENTRIES", 100)
    store, buffer, _ = build(tmp_path)
    assert isinstance(store, plain.PlainStore)
    for number in range(1000):
        store.put(f"key{number}", number)
        assert len(store.pending) <= 100
        assert len(store.clean) <= 100
    assert len(buffer) >= 800
    for number in range(1000):
        assert store.get(f"key{number}") == number
        assert len(store.clean) <= 100
    long = "x" * 1000
    store.put(long, long)
    assert store.get(long) == long
    store.put("short", long)
    assert store.get("short") == long
    assert not {long, "short"} & (store.pending.keys() | store.clean.keys())


def test_a_hot_key_is_serialized_once_a_commit(tmp_path: Path) -> None:
    class Counting(MsgpackSerde):
        calls = 0

        def serialize(self, value: Any) -> bytes:
            Counting.calls += 1
            return super().serialize(value)

        def serializer(self) -> Any:
            return self.serialize

    store, buffer, _ = build(tmp_path, key_serde=Counting(), value_serde=Counting())
    for _ in range(1000):
        store.put("hot", (store.get("hot") or 0) + 1)
    assert Counting.calls <= 2
    assert len(buffer) == 0
    store.flush()
    assert Counting.calls <= 5
    assert buffer.get(Counting().serialize("hot")) == b"\x00" + Counting().serialize(1000)
