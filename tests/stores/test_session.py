"""Session stores answer as a dict of (serialized key, start, end) would, over commits, failures and re-openings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from penstock.errors import ConfigError, SerdeError, StoreError
from penstock.record import Windowed
from penstock.store import ValueTimestampHeaders
from penstock.store.kinds.session import session_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.kinds import plain
from penstock.stores.kinds import session as session_module
from penstock.stores.memory import MemoryBackend

from ..rotation import examples
from .windowed_machine import CommittedStore, CountingContext, run

MANY = 2**63 - 1


@dataclass
class SessionModel:
    """What the documentation says of a session store: values by key, end and start, which is their order."""

    retention: int
    rows: dict[tuple[bytes, int, int], Any] = field(default_factory=dict)
    newest: int = -1
    late: int = 0

    def put(self, raw: bytes, value: Any, start: int, end: int) -> None:
        self.newest = max(self.newest, end)
        if self.is_expired(end):
            self.late += 1
        elif value is None:
            self.rows.pop((raw, end, start), None)
        else:
            self.rows[raw, end, start] = value

    def is_expired(self, end: int) -> bool:
        return end <= self.newest - self.retention

    def scan(
        self, low: bytes | None, high: bytes | None, earliest_end: int, latest_start: int
    ) -> list[tuple[bytes, int, int, Any]]:
        return [
            (raw, start, end, value)
            for (raw, end, start), value in sorted(self.rows.items(), key=lambda row: row[0])
            if (low is None or raw >= low) and (high is None or raw <= high)
            if end >= earliest_end and start <= latest_start and not self.is_expired(end)
        ]


class SessionMachine(CommittedStore):
    """A session store, beside its model. Times move on slowly, jump now and then, and are often late."""

    retention: ClassVar[int]
    model: SessionModel

    def spec(self) -> Any:
        return session_store(
            "s", retention=f"{self.retention}ms", key_serde=self.key_serde, value_serde=self.value_serde
        )

    def new_model(self) -> SessionModel:
        return SessionModel(self.retention)

    def drawn_time(self, data: st.DataObject) -> int:
        newest = max(self.model.newest, 0)
        near = st.integers(-self.retention - 3, self.retention + 3).map(lambda step: max(0, newest + step))
        return data.draw(near | st.sampled_from([0, newest, newest + 3 * self.retention]), "time")

    def drawn_session(self, data: st.DataObject) -> tuple[int, int]:
        end = self.drawn_time(data)
        length = data.draw(st.sampled_from([0, 1, 3, 3 * self.retention]), "length")
        return max(0, end - length), end

    def seen(self, entries: list[tuple[bytes, int, int, Any]]) -> list[tuple[Windowed, Any]]:
        return [(Windowed(self.seen_key(raw), start, end), value) for raw, start, end, value in entries]

    @rule(data=st.data(), times=st.integers(1, 3))
    def put(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            (key, raw), (start, end), value = self.drawn_key(data), self.drawn_session(data), self.drawn_value(data)
            self.store.put(Windowed(key, start, end), value)
            self.model.put(raw, copy.deepcopy(value), start, end)
            self.spoil(value)
        assert self.context.drops == self.model.late

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        """What a session count does: find the sessions around a time, remove them, put the merged one."""
        (key, raw), now = self.drawn_key(data), self.drawn_time(data)
        found = list(self.store.find_sessions(key, now - 2, now + 2))
        expected = self.model.scan(raw, raw, now - 2, now + 2)
        self.check(found, self.seen(expected))
        for session, value in found:
            self.store.remove(session)
            self.model.put(raw, None, session.start, session.end)
            self.spoil(value)
        start = min([now, *(session.start for session, _ in found)])
        end = max([now, *(session.end for session, _ in found)])
        value = self.drawn_value(data)
        self.store.put(Windowed(key, start, end), value)
        self.model.put(raw, copy.deepcopy(value), start, end)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Remove one of the sessions that there are."""
        rows = sorted(self.model.rows)
        if rows:
            raw, end, start = data.draw(st.sampled_from(rows), "session")
            self.store.remove(Windowed(self.seen_key(raw), start, end))
            self.model.put(raw, None, start, end)

    @rule(data=st.data())
    def fetch_session(self, data: st.DataObject) -> None:
        (_, raw), (start, end) = self.drawn_key(data), self.drawn_session(data)
        for row in [(raw, end, start), *sorted(self.model.rows)]:
            raw, end, start = row
            value = None if self.model.is_expired(end) else self.model.rows.get(row)
            found = self.store.fetch_session(self.seen_key(raw), start, end)
            self.check(found, value)
            self.spoil(found)

    @rule(data=st.data(), reverse=st.booleans())
    def fetch(self, data: st.DataObject, reverse: bool) -> None:
        key, raw = self.drawn_key(data)
        with (self.store.backward_fetch if reverse else self.store.fetch)(key) as entries:
            found = list(entries)
        expected = self.seen(self.model.scan(raw, raw, 0, MANY))
        self.check(found, expected[::-1] if reverse else expected)

    @rule(data=st.data(), reverse=st.booleans())
    def find_sessions(self, data: st.DataObject, reverse: bool) -> None:
        (key, raw), first, last = self.drawn_key(data), self.drawn_time(data), self.drawn_time(data)
        scan = self.store.backward_find_sessions if reverse else self.store.find_sessions
        expected = self.seen(self.model.scan(raw, raw, first, last))
        self.check(list(scan(key, first, last)), expected[::-1] if reverse else expected)

    @rule(data=st.data(), reverse=st.booleans())
    def find_sessions_range(self, data: st.DataObject, reverse: bool) -> None:
        low_key, low, high_key, high = self.drawn_ends(data)
        first, last = self.drawn_time(data), self.drawn_time(data)
        scan = self.store.backward_find_sessions_range if reverse else self.store.find_sessions_range
        expected = self.seen(self.model.scan(low, high, first, last))
        self.check(list(scan(low_key, high_key, first, last)), expected[::-1] if reverse else expected)

    @rule(data=st.data(), reverse=st.booleans())
    def fetch_range(self, data: st.DataObject, reverse: bool) -> None:
        low_key, low, high_key, high = self.drawn_ends(data)
        scan = self.store.backward_fetch_range if reverse else self.store.fetch_range
        expected = self.seen(self.model.scan(low, high, 0, MANY))
        self.check(list(scan(low_key, high_key)), expected[::-1] if reverse else expected)

    @rule(data=st.data(), reverse=st.booleans())
    def change_while_scanning(self, data: st.DataObject, reverse: bool) -> None:
        """Put over every second session that a scan yields, flush in between: each is seen once, in order."""
        seen = []
        scan = self.store.backward_fetch_range if reverse else self.store.fetch_range
        for number, (session, _) in enumerate(scan(None, None)):
            raw = self.keys.serialize(session.key)
            seen.append((raw, session.end, session.start))
            if number % 2:
                value = self.drawn_value(data)
                self.store.put(session, value)
                self.model.put(raw, copy.deepcopy(value), session.start, session.end)
                self.store.flush()
        assert seen == sorted(set(seen), reverse=reverse)

    @rule()
    def count(self) -> None:
        live = len(self.model.scan(None, None, 0, MANY))
        assert live <= self.store.approximate_count() <= len(self.model.rows)

    def lose(self) -> None:
        late = self.model.late
        super().lose()
        self.model.late = late


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
@pytest.mark.parametrize(
    ("key_serde", "value_serde", "retention"),
    [(None, None, 20), ("str", "int", 7), ("bytes", "bytes", 100), ("int", None, 20), ("str", "str", 5)],
)
def test_any_history(
    monkeypatch: pytest.MonkeyPatch, key_serde: str | None, value_serde: str | None, retention: int, backend: str
) -> None:
    monkeypatch.setattr(plain, "CACHED_ENTRIES", 4)  # keys are dropped and read again all the time
    monkeypatch.setattr(session_module, "MOST_OF_A_KEY", 2)
    run(
        SessionMachine,
        "Session",
        key_serde=key_serde,
        value_serde=value_serde,
        retention=retention,
        backend_name=backend,
    )


def build(**options: Any) -> tuple[Any, CommitBuffer, CountingContext]:
    spec = session_store("visits", retention="1h", **options)
    context = CountingContext()
    context.fixed_options = spec.traits.fixed_options
    buffer = CommitBuffer(MemoryBackend.ephemeral(["visits"]), "visits")
    return spec.build(buffer, context), buffer, context


def test_wrong_use_says_what_a_session_store_takes() -> None:
    store, _, _ = build(key_serde="str", value_serde="int")
    fraction: Any = 1.5
    uses: list[Callable[[], object]] = [
        lambda: store.put("a", 1),
        lambda: store.put(("a", 1), 1),
        lambda: store.put(Windowed("a", fraction, 2), 1),
        lambda: store.fetch_session("a", "1", 2),
        lambda: store.fetch_session("a", 1, 2**63),
        lambda: store.find_sessions("a", None, 5),
    ]
    for use in uses:
        with pytest.raises(StoreError, match=r"'visits' is a session store"):
            use()
    for session in (Windowed("a", 5, 4), Windowed("a", -1, 4)):
        with pytest.raises(StoreError, match="'visits': a session starts at 0 ms or later and does not end before"):
            store.put(session, 1)
    uses = [
        lambda: store.put(Windowed(None, 1, 2), 1),
        lambda: store.remove(Windowed(None, 1, 2)),
        lambda: store.fetch(None),
        lambda: store.fetch_session(None, 1, 2),
    ]
    for use in uses:
        with pytest.raises(StoreError, match="'visits'.*key of None"):
            use()
    assert list(store.fetch_range(None, None)) == []


def test_a_wrong_declaration_names_the_store_and_the_option() -> None:
    with pytest.raises(ConfigError, match="retention of store 'visits'.*at least 1ms"):
        session_store("visits", retention="0s")
    with pytest.raises(StoreError, match="session_store"):
        session_store("a/b", retention="1s")


def test_what_a_serde_refuses_is_refused_at_once_and_changes_nothing() -> None:
    store, _, _ = build(key_serde="str", value_serde="int")
    store.put(Windowed("a", 0, 10), 1)
    for key, value in (("a", "text"), ("a", 2**63), (1, 1)):
        with pytest.raises(SerdeError, match="'visits'"):
            store.put(Windowed(key, 0, 10), value)
    with pytest.raises(SerdeError, match="'visits'"):
        store.put(Windowed("a", 5, 20), "text")
    assert list(store.fetch("a")) == [(Windowed("a", 0, 10), 1)]
    store.flush()
    assert list(store.fetch_range(None, None)) == [(Windowed("a", 0, 10), 1)]


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "remove", "find", "flush"]), st.integers(0, 30), st.integers(0, 10)),
        min_size=10,
        max_size=40,
    )
)
def test_the_sessions_of_one_key_without_a_look_at_them_after_each_step(steps: list[tuple[str, int, int]]) -> None:
    """A look at all keys would write what is kept as objects."""
    store, buffer, _ = build(key_serde="str")
    rows: dict[tuple[int, int], int] = {}
    for number, (step, start, length) in enumerate(steps):
        end = start + length
        if step == "put":
            store.put(Windowed("a", start, end), number)
            rows[end, start] = number
        elif step == "remove":
            for row in sorted(rows)[-1 - length :][:1]:
                store.remove(Windowed("a", row[1], row[0]))
                del rows[row]
        elif step == "flush":
            store.flush()
        else:
            for first in (start, 0):
                found = [(session.end, session.start, value) for session, value in store.find_sessions("a", first, end)]
                assert found == [(*row, rows[row]) for row in sorted(rows) if row[0] >= first and row[1] <= end]
    store.flush()
    assert [value for _, value in store.fetch("a")] == [rows[row] for row in sorted(rows)]
    assert len([data for _, data in buffer.changes() if data is not None]) == len(rows) + any(buffer.changes())


def test_a_session_that_grew_leaves_no_rows_behind() -> None:
    """Merging record after record into one session writes that one, not each step."""
    store, buffer, _ = build(key_serde="str")
    for now in range(0, 1000, 10):
        start, count = now, 1
        for session, counted in store.find_sessions("a", now - 10, now + 10):
            start, count = session.start, count + counted
            store.remove(session)
        store.put(Windowed("a", start, now), count)
    store.flush()
    assert len(buffer) == 2  # the session, and the store's own row
    assert list(store.fetch("a")) == [(Windowed("a", 0, 990), 100)]


def test_what_is_held_of_a_key_is_bounded_and_earlier_sessions_are_found() -> None:
    store, _, _ = build(key_serde="str")
    for now in range(0, 100_000, 100):
        store.put(Windowed("a", now, now), now)
        if now % 1000 == 0:
            store.flush()
            assert len(store._known["a"].overlapping(0, MANY)) <= session_module.MOST_OF_A_KEY
    found = [value for _, value in store.find_sessions("a", 500, 2_000)]
    assert found == list(range(500, 2_001, 100))
    assert [value for _, value in store.fetch("a")] == list(range(0, 100_000, 100))
    assert store.fetch_session("a", 100, 100) == 100
    store.remove(Windowed("a", 100, 100))
    assert store.fetch_session("a", 100, 100) is None
    store.flush()
    assert len(store._known["a"].overlapping(0, MANY)) <= session_module.MOST_OF_A_KEY
    assert len(list(store.fetch("a"))) == 999


def test_the_last_sessions_of_a_key_are_found_without_its_others() -> None:
    """However many there are: a key may have sessions of days."""
    reads = []

    class Counting(CommitBuffer):
        def range(self, *args: Any, **options: Any) -> Any:
            for row in super().range(*args, **options):
                reads.append(row)
                yield row

    spec: Any = session_store("visits", retention="1h", key_serde="str")
    context = CountingContext()
    context.fixed_options = spec.traits.fixed_options
    buffer = Counting(MemoryBackend.ephemeral(["visits"]), "visits")
    store = spec.build(buffer, context)
    for now in range(0, 1_000_000, 1000):
        store.put(Windowed("a", now, now), now)
    store.flush()
    reopened = spec.build(buffer, context)
    assert [value for _, value in reopened.find_sessions("a", 998_000, 999_000)] == [998_000, 999_000]
    assert len(reads) <= 60


def test_a_store_with_headers_keeps_them() -> None:
    spec = session_store("s", retention="1s", key_serde="str", value_serde="int", headers=True)
    backend, context = MemoryBackend.ephemeral(["s"]), CountingContext()
    context.fixed_options = spec.traits.fixed_options
    buffer = CommitBuffer(backend, "s")
    store: Any = spec.build(buffer, context)
    value = ValueTimestampHeaders(1, 7, (("h", b"x"), ("h", None)))
    session = Windowed("a", 5, 9)
    store.put(session, value)
    store.put(Windowed("a", 20, 20), value._replace(headers=()))
    store.put(Windowed("a", 20, 20), ValueTimestampHeaders(None, 8, ()))
    store.flush()
    store.discard()
    assert list(store.fetch("a")) == [(session, value)]
    with pytest.raises(StoreError, match="store 's' keeps headers: expected ValueTimestampHeaders"):
        store.put(session, 1)
