"""Entries of a store with a TTL are gone on time, and leave no waste behind."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock import WALL_CLOCK_TIME, PunctuationType
from penstock.errors import ConfigError
from penstock.store import Change, ValueAndTimestamp
from penstock.store.kinds.key_value import ExpiringKeyValueStore, KeyValueStoreSpec, key_value_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.kinds import expiring
from penstock.stores.memory import MemoryBackend

from ..rotation import examples
from .context import TestContext


class Stored:
    """A store with a TTL of 100 ms that is committed and re-opened at will.

    `delta` is its history in a directory changelog, and `topic` that in a changelog topic.
    """

    def __init__(self, **options: Any) -> None:
        self.context = TestContext()
        self.context.expires = True
        self.backend = MemoryBackend.ephemeral(["s", "i"])
        self.spec = KeyValueStoreSpec("s", "str", None, **{"ttl_ms": 100, **options})
        self.topic: dict[bytes, bytes | None] = {}
        self.delta: dict[bytes, bytes | None] = {}
        self.open()

    def open(self) -> None:
        self.buffer, self.index = CommitBuffer(self.backend, "s"), CommitBuffer(self.backend, "i")
        self.context.given_index = self.index
        store = self.spec.build(self.buffer, self.context)
        assert isinstance(store, ExpiringKeyValueStore)
        self.store: ExpiringKeyValueStore[Any, Any] = store

    def commit(self) -> None:
        self.store.flush()
        version, changes = self.backend.version(), self.buffer.changes()
        self.delta.update(changes)
        self.topic.update(self.buffer.topic_changes(changes))
        rows = {"s": self.buffer.local_changes(changes), "i": self.index.changes()}
        self.backend.write(rows, version, "v")
        self.buffer.clear()
        self.index.clear()

    def restore(self, history: dict[bytes, bytes | None]) -> None:
        """Open a new host's copy, from the deltas or from the topic."""
        rows: list[Change] = [(key, row) for key, row in sorted(history.items()) if row is not None]
        self.backend = MemoryBackend.ephemeral(["s", "i"])
        self.backend.write({"s": rows, "i": [(b"", None)]}, None, "v")
        self.open()

    def copied(self) -> dict[str, list[Change]]:
        """Return what this host has."""
        return {name: list(self.backend.range(name)) for name in ("s", "i")}

    def catch_up(self, copied: dict[str, list[Change]]) -> None:
        """Open an earlier copy of this host, with the deltas since; its index has rows that are out of date."""
        self.backend = MemoryBackend.ephemeral(["s", "i"])
        self.backend.write(copied, None, "v")
        self.backend.write({"s": sorted(self.delta.items()), "i": [(b"", None)]}, "v", "v")
        self.open()

    def rows(self) -> int:
        """How many entries and rows of the index there are, beside that of the build."""
        return self.backend.approximate_count("s") + self.backend.approximate_count("i") - 1


def test_an_entry_is_gone_when_its_time_is_up() -> None:
    stored = Stored()
    store, context = stored.store, stored.context
    context.now = 1000
    store.put("a", 1)
    context.now = 1050
    store.put("b", 2)
    context.now = 1099
    assert store.get("a") == 1
    assert dict(store.all()) == {"a": 1, "b": 2}
    context.now = 1100
    assert store.get("a") is None
    assert dict(store.all()) == {"b": 2}
    assert list(store.reverse_range("a", "b")) == [("b", 2)]
    assert list(store.prefix_scan("a")) == []
    assert store.delete("a") is None
    assert store.put_if_absent("a", 3) is None
    assert store.put_if_absent("b", 4) == 2
    context.now = 1151
    assert dict(store.all()) == {"a": 3}


def test_a_put_begins_anew() -> None:
    stored = Stored()
    for stored.context.now in range(0, 500, 50):
        stored.store.put("a", 1)
        stored.commit()
        stored.open()
    stored.context.now = 549
    assert stored.store.get("a") == 1
    stored.context.now = 550
    assert stored.store.get("a") is None


def test_timestamps_and_a_ttl_go_together() -> None:
    stored = Stored(timestamped=True)
    stored.context.now = 0
    stored.store.put("a", ValueAndTimestamp([1], 77))
    stored.commit()
    assert stored.store.get("a") == ValueAndTimestamp([1], 77)
    stored.context.now = 100
    assert stored.store.get("a") is None


def test_a_ttl_may_be_switched_on_and_off() -> None:
    stored = Stored(ttl_ms=None)
    stored.store.put("old", 1)
    stored.commit()
    stored.spec = KeyValueStoreSpec("s", "str", None, ttl_ms=100)
    stored.open()
    stored.context.now = 1000
    stored.store.put("new", 2)
    stored.context.now = 5000
    assert dict(stored.store.all()) == {"old": 1}, "what had no expiry keeps having none"
    stored.store.put("newer", 3)
    stored.commit()
    stored.spec = KeyValueStoreSpec("s", "str", None)
    stored.open()
    stored.store.put("newest", 4)
    assert stored.store.get("newer") == 3
    stored.context.now = 9000
    assert dict(stored.store.all()) == {"old": 1, "newest": 4}, "what has an expiry keeps it"
    stored.commit()
    assert stored.backend.approximate_count("s") == 2


def test_before_the_first_record_there_is_no_time_to_expire_by() -> None:
    stored = Stored()
    stored.store.put("a", 1)
    stored.context.now = 10**12
    assert stored.store.get("a") == 1


def test_ever_new_keys_do_not_pile_up() -> None:
    """In steady state at most a few times as many entries are kept as are alive, although nobody reads."""
    stored = Stored()
    for number in range(20_000):
        stored.context.now = number
        stored.store.put(f"{number * 7919 % 100_003}", number)
        if number % 1000 == 999:
            stored.commit()
    alive = 100
    assert stored.backend.approximate_count("s") < 10 * alive


def test_a_task_that_is_always_opened_again_sweeps_as_well() -> None:
    stored = Stored()
    for number in range(20_000):
        stored.context.now = number
        stored.store.put(f"{number:08}", number)
        if number % 10 == 9:
            stored.commit()
            stored.open()
    assert stored.backend.approximate_count("s") < 1000


def test_a_quiet_store_empties_with_the_commits() -> None:
    stored = Stored()
    stored.context.now = 0
    for number in range(1000):
        stored.store.put(f"{number:08}", number)
    stored.context.now = 110  # entries are looked at a little after they expire
    for _ in range(20):
        stored.commit()
    assert stored.backend.approximate_count("s") == 0


def test_work_is_in_proportion_to_what_expires() -> None:
    """A commit looks at no entry that has not expired, however many there are, and frees so many at once."""
    stored = Stored(ttl_ms=8000)
    stored.context.now = 0
    for number in range(5000):
        stored.store.put(f"{number}", number)
    stored.commit()
    seen = []
    real = stored.buffer.get
    stored.buffer.get = lambda key: (seen.append(key), real(key))[1]  # type: ignore[method-assign,func-returns-value]
    stored.context.now = 7999
    stored.commit()
    assert not seen
    stored.context.now = 9000
    stored.commit()
    assert 0 < len(seen) < 1100
    assert stored.backend.approximate_count("s") == 5000 - len(seen)
    assert dict(stored.store.all()) == {}, "all are hidden"


@pytest.mark.parametrize("reopened", [False, True])
def test_a_put_changes_the_index_at_most_eight_times_in_a_ttl(reopened: bool) -> None:
    stored = Stored(ttl_ms=10_000)
    changes = 0
    for stored.context.now in range(0, 100_000, 100):
        stored.store.put("a", 1)
        stored.store.flush()
        changes += len(stored.index.changes())
        stored.commit()
        if reopened:
            stored.open()
    assert changes < 2 * 8 * 1.5 * 10
    assert stored.rows() == 2


def test_an_index_for_existing_entries_is_built_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "_BUILT", 10)
    stored = Stored()
    stored.context.now = 0
    for number in range(95):
        stored.store.put(f"{number:03}", number)
    stored.commit()
    stored.restore(stored.delta)
    stored.context.now = 200
    stored.commit()
    for left in [*range(95, 0, -10), 0]:
        assert dict(stored.store.all()) == {}
        assert stored.backend.approximate_count("s") == left
        stored.commit()
        stored.open()
    assert stored.rows() == 0


def test_what_is_freed_is_a_tombstone_in_a_topic_only() -> None:
    stored = Stored()
    stored.context.now = 0
    stored.store.put("a", 1)
    stored.commit()
    stored.context.now = 150
    stored.commit()
    assert list(stored.topic.values()) == [None]
    assert list(stored.delta.values()) != [None]


def test_the_wall_clock_may_be_the_one_that_counts() -> None:
    stored = Stored(ttl_clock=WALL_CLOCK_TIME)
    stored.context.wall = 1000
    stored.store.put("a", 1)
    stored.context.now = 10**9
    assert stored.store.get("a") == 1
    stored.commit()
    stored.spec = KeyValueStoreSpec("s", "str", None, ttl_ms=5)
    stored.open()
    assert stored.store.get("a") == 1, "an entry keeps the clock that it was put with"
    stored.context.wall = 1100
    assert stored.store.get("a") is None


def test_wrong_use_says_what_to_write() -> None:
    stored = Stored()
    with pytest.raises(ConfigError, match=r"ttl of an entry of store 's': expected a timedelta or text"):
        stored.store.put("a", 1, ttl=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="entry of store 's': expected a duration of at least 1ms, found '0s'"):
        stored.store.put("a", 1, ttl="0s")
    with pytest.raises(
        ConfigError, match="ttl_clock of store 's': expected STREAM_TIME or WALL_CLOCK_TIME, found 'wall'"
    ):
        key_value_store("s", ttl="1h", ttl_clock="wall")  # type: ignore[arg-type]
    context = TestContext()
    plain: Any = KeyValueStoreSpec("s", "str").build(stored.buffer, context)
    with pytest.raises(TypeError, match=r"store 's': entries have no TTL; declare .*expires=True.*: put\(\) got an"):
        plain.put("a", 1, ttl="1h")


KEY = st.sampled_from(["a", "b", "c", "é"])
TTL = st.sampled_from([None, "1ms", "7ms", "20ms", "90d"])
MS = {"1ms": 1, "7ms": 7, "20ms": 20, "90d": 90 * 86_400_000}


class Expiring(RuleBasedStateMachine):
    """A store and a dict of (value, clock, expiry), as the documentation has it."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = Stored(ttl_ms=None, expires=True)
        self.seen: dict[str, tuple[Any, str, float]] = {}
        self.copied: dict[str, list[Change]] | None = None
        self.committed = dict(self.seen)

    def clock(self, name: str) -> int:
        return self.stored.context.now if name == "stream" else self.stored.context.wall

    def alive(self) -> dict[str, Any]:
        return {key: value for key, (value, clock, expiry) in self.seen.items() if expiry > self.clock(clock)}

    @rule(key=KEY, value=st.none() | st.integers() | st.lists(st.booleans()), ttl=TTL)
    def put(self, key: str, value: Any, ttl: str | None) -> None:
        self.stored.store.put(key, value, ttl)
        self.note(key, value, self.stored.spec.ttl_ms if ttl is None else MS[ttl])

    def note(self, key: str, value: Any, ttl_ms: int | None) -> None:
        clock = self.stored.spec.ttl_clock.value
        has_expiry = ttl_ms is not None and self.clock(clock) >= 0
        self.seen[key] = (value, clock, self.clock(clock) + ttl_ms if has_expiry and ttl_ms else inf)
        if value is None:
            del self.seen[key]

    @rule(key=KEY)
    def get(self, key: str) -> None:
        assert self.stored.store.get(key) == self.alive().get(key)

    @rule(key=KEY)
    def delete(self, key: str) -> None:
        assert self.stored.store.delete(key) == self.alive().get(key)
        if key in self.alive():
            del self.seen[key]

    @rule(key=KEY, value=st.integers())
    def put_if_absent(self, key: str, value: int) -> None:
        old = self.alive().get(key)
        assert self.stored.store.put_if_absent(key, value) == old
        if old is None:
            self.note(key, value, self.stored.spec.ttl_ms)

    @rule(reverse=st.booleans())
    def scan(self, reverse: bool) -> None:
        found = list(self.stored.store.reverse_all() if reverse else self.stored.store.all())
        assert found == sorted(self.alive().items(), reverse=reverse)

    @rule(stream=st.integers(0, 12), wall=st.integers(0, 12))
    def time_passes(self, stream: int, wall: int) -> None:
        self.stored.context.now += stream
        self.stored.context.wall += wall

    @rule()
    def commit(self) -> None:
        self.stored.commit()
        self.committed = dict(self.seen)

    @rule()
    def fail(self) -> None:
        self.stored.store.discard()
        self.stored.buffer.clear()
        self.stored.index.clear()
        self.seen = dict(self.committed)

    @rule(ttl_ms=st.sampled_from([None, 1, 10, 100]), clock=st.sampled_from(PunctuationType))
    def open(self, ttl_ms: int | None, clock: PunctuationType) -> None:
        self.stored.spec = KeyValueStoreSpec("s", "str", None, False, ttl_ms, clock)
        self.seen = dict(self.committed)
        self.stored.open()

    @rule(from_topic=st.booleans())
    def restore(self, from_topic: bool) -> None:
        self.seen = dict(self.committed)
        self.stored.restore(self.stored.topic if from_topic else self.stored.delta)

    @rule()
    def copy(self) -> None:
        self.copied = self.stored.copied()

    @precondition(lambda self: self.copied is not None)
    @rule()
    def catch_up(self) -> None:
        self.seen = dict(self.committed)
        assert self.copied is not None
        self.stored.catch_up(self.copied)

    def teardown(self) -> None:
        """In the end nothing is left of what has expired."""
        self.commit()
        self.stored.context.now = self.stored.context.wall = 10**12
        for _ in range(4):
            self.commit()
        assert dict(self.stored.store.all()) == self.alive()
        assert self.stored.rows() == len(self.alive())
        assert sum(row is not None for row in self.stored.topic.values()) == len(self.alive())


TestExpiring = Expiring.TestCase
TestExpiring.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_rows_of_an_earlier_copy_free_nothing_that_is_alive() -> None:
    stored = Stored()
    stored.context.now = 0
    stored.store.put("longer", 1)
    stored.store.put("other clock", 1)
    stored.commit()
    copied = stored.copied()
    stored.context.now = 50
    stored.store.put("longer", 2)
    stored.commit()
    stored.spec = KeyValueStoreSpec("s", "str", None, ttl_ms=100, ttl_clock=WALL_CLOCK_TIME)
    stored.open()
    stored.store.put("other clock", 2)
    stored.commit()
    stored.catch_up(copied)
    stored.context.now = 120
    stored.commit()
    assert dict(stored.store.all()) == {"longer": 2, "other clock": 2}
