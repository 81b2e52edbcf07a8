"""Window stores answer as a dict of (serialized key, window start) would, over commits, failures and re-openings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from penstock.errors import ConfigError, SerdeError, StoreError
from penstock.record import Windowed
from penstock.store import ValueAndTimestamp
from penstock.store.kinds.window import window_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.kinds import plain
from penstock.stores.memory import MemoryBackend

from ..rotation import examples
from .windowed_machine import CommittedStore, CountingContext, run

SIZE = 5
MANY = 2**63 - 1


@dataclass
class WindowModel:
    """What the documentation says of a window store: lists of values by key and window start, in the order of puts."""

    retention: int
    duplicates: bool
    rows: dict[tuple[bytes, int], list[Any]] = field(default_factory=dict)
    newest: int = -1
    late: int = 0

    def put(self, raw: bytes, value: Any, start: int) -> None:
        if value is not None or not self.duplicates:
            self.newest = max(self.newest, start)
        if self.is_expired(start):
            self.late += 1
        elif value is None:
            if not self.duplicates:
                self.rows.pop((raw, start), None)
        elif self.duplicates:
            self.rows.setdefault((raw, start), []).append(value)
        else:
            self.rows[raw, start] = [value]

    def is_expired(self, start: int) -> bool:
        return start <= self.newest - self.retention

    def scan(self, low: bytes | None, high: bytes | None, first: int, last: int) -> list[tuple[bytes, int, Any]]:
        return [
            (raw, start, value)
            for (raw, start), values in sorted(self.rows.items())
            if (low is None or raw >= low) and (high is None or raw <= high)
            if first <= start <= last and not self.is_expired(start)
            for value in values
        ]


class WindowMachine(CommittedStore):
    """A window store, beside its model. Times move on slowly, jump now and then, and are often late."""

    duplicates: ClassVar[bool] = False
    retention: ClassVar[int]
    model: WindowModel

    def spec(self) -> Any:
        return window_store(
            "s",
            retention=f"{self.retention}ms",
            window_size=f"{SIZE}ms",
            key_serde=self.key_serde,
            value_serde=self.value_serde,
            timestamped=self.timestamped is True,
            headers=self.timestamped == "headers",
            retain_duplicates=self.duplicates,
        )

    def new_model(self) -> WindowModel:
        return WindowModel(self.retention, self.duplicates)

    @initialize(entries=st.sampled_from([4, 64, 1_000]))
    def keep(self, entries: int) -> None:
        """With few, entries are evicted all the time; with many, fetches over a range are answered from objects."""
        plain.CACHED_ENTRIES = entries

    def drawn_time(self, data: st.DataObject) -> int:
        newest = max(self.model.newest, 0)
        near = st.integers(-self.retention - 3, self.retention + 3).map(lambda step: max(0, newest + step))
        return data.draw(near | st.sampled_from([0, newest, newest + 3 * self.retention]), "time")

    def seen(self, entries: list[tuple[bytes, int, Any]]) -> list[tuple[Windowed, Any]]:
        return [(Windowed(self.seen_key(raw), start, start + SIZE), value) for raw, start, value in entries]

    @rule(data=st.data(), times=st.integers(1, 3))
    def put(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            (key, raw), start, value = self.drawn_key(data), self.drawn_time(data), self.drawn_value(data)
            self.store.put(key, value, start)
            self.model.put(raw, copy.deepcopy(value), start)
            self.spoil(value)
        assert self.context.drops == self.model.late

    @precondition(lambda self: not self.duplicates)
    @rule(data=st.data())
    def count_up(self, data: st.DataObject) -> None:
        """What a windowed count does: fetch and put of one window, over and over."""
        (key, raw), start = self.drawn_key(data), self.drawn_time(data)
        for _ in range(3):
            found = self.store.fetch(key, start)
            expected = self.model.scan(raw, raw, start, start)
            self.check(found, expected[0][2] if expected else None)
            self.spoil(found)
            value = self.drawn_value(data)
            self.store.put(key, value, start)
            self.model.put(raw, copy.deepcopy(value), start)

    @precondition(lambda self: self.duplicates)
    @rule(data=st.data(), times=st.integers(1, 8))
    def join(self, data: st.DataObject, times: int) -> None:
        """What a join of streams does: put a record, fetch those of a key that are near it."""
        for _ in range(times):
            (key, raw), start, value = self.drawn_key(data), self.drawn_time(data), self.drawn_value(data)
            self.store.put(key, value, start)
            self.model.put(raw, copy.deepcopy(value), start)
            key, raw = self.drawn_key(data)
            first, last = max(0, start - SIZE), start + SIZE
            expected = [(start, value) for _, start, value in self.model.scan(raw, raw, first, last)]
            self.check(list(self.store.fetch(key, first, last)), expected)

    @rule(data=st.data(), reverse=st.booleans())
    def fetch(self, data: st.DataObject, reverse: bool) -> None:
        (key, raw), first, last = self.drawn_key(data), self.drawn_time(data), self.drawn_time(data)
        last = data.draw(st.sampled_from([first, last, MANY]))
        with (self.store.backward_fetch if reverse else self.store.fetch)(key, first, last) as entries:
            found = list(entries)
        expected = [(start, value) for _, start, value in self.model.scan(raw, raw, first, last)]
        self.check(found, expected[::-1] if reverse else expected)
        for _, value in found:
            self.spoil(value)

    @rule(data=st.data(), reverse=st.booleans())
    def fetch_range(self, data: st.DataObject, reverse: bool) -> None:
        low_key, low, high_key, high = self.drawn_ends(data)
        first, last = self.drawn_time(data), self.drawn_time(data)
        last = data.draw(st.sampled_from([first, last, MANY]))
        scan = self.store.backward_fetch_range if reverse else self.store.fetch_range
        expected = self.seen(self.model.scan(low, high, first, last))
        self.check(list(scan(low_key, high_key, first, last)), expected[::-1] if reverse else expected)

    @rule(reverse=st.booleans())
    def fetch_everything(self, reverse: bool) -> None:
        expected = self.seen(self.model.scan(None, None, 0, MANY))
        scan = self.store.backward_all if reverse else self.store.all
        self.check(list(scan()), expected[::-1] if reverse else expected)

    @rule(data=st.data(), reverse=st.booleans())
    def change_while_scanning(self, data: st.DataObject, reverse: bool) -> None:
        """Put over every second window that a scan yields, flush in between: each window is seen once, in order."""
        seen = []
        for number, (key, _) in enumerate(self.store.backward_all() if reverse else self.store.all()):
            raw = self.keys.serialize(key.key)
            seen.append((raw, key.start))
            if number % 2 and not self.duplicates:
                value = self.drawn_value(data)
                self.store.put(key.key, value, key.start)
                self.model.put(raw, copy.deepcopy(value), key.start)
                self.store.flush()
        assert seen == sorted(seen, reverse=reverse)
        assert self.duplicates or len(seen) == len(set(seen))

    @rule()
    def count(self) -> None:
        live = len(self.model.scan(None, None, 0, MANY))
        assert live <= self.store.approximate_count() <= sum(map(len, self.model.rows.values()))

    def lose(self) -> None:
        late = self.model.late
        super().lose()
        self.model.late = late


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
@pytest.mark.parametrize(
    ("key_serde", "value_serde", "timestamped", "duplicates", "retention"),
    [
        (None, None, False, False, 20),
        ("str", "int", False, False, 7),
        ("bytes", "bytes", False, False, 100),
        ("int", "int", True, False, 20),
        ("str", None, True, False, 5),
        ("str", None, "headers", False, 20),
        ("int", "int", "headers", True, 20),
        ("bytes", "str", False, True, 20),
        ("str", "int", False, True, 20),
    ],
)
def test_any_history(
    monkeypatch: pytest.MonkeyPatch,
    key_serde: str | None,
    value_serde: str | None,
    timestamped: bool | str,
    duplicates: bool,
    retention: int,
    backend: str,
) -> None:
    monkeypatch.setattr(plain, "CACHED_ENTRIES", plain.CACHED_ENTRIES)  # so that it is restored: examples set it
    run(
        WindowMachine,
        "Window",
        key_serde=key_serde,
        value_serde=value_serde,
        timestamped=timestamped,
        duplicates=duplicates,
        retention=retention,
        backend_name=backend,
    )


def build(context: CountingContext | None = None, **options: Any) -> tuple[Any, CommitBuffer, CountingContext]:
    given = {"retention": "1h", "window_size": "1m"} | options
    spec = window_store("views", **given)
    context = context or CountingContext()
    context.fixed_options = context.fixed_options or spec.traits.fixed_options
    buffer = CommitBuffer(MemoryBackend.ephemeral(["views"]), "views")
    return spec.build(buffer, context), buffer, context


def test_wrong_use_says_what_a_window_store_takes() -> None:
    store, _, _ = build(key_serde="str")
    uses: list[Callable[[], object]] = [
        lambda: store.fetch("a"),
        lambda: store.fetch("a", None),
        lambda: store.fetch("a", 1.5),
        lambda: store.fetch("a", True),
        lambda: store.fetch("a", 0, "5"),
        lambda: store.fetch_range(None, None, 0, 2**63),
        lambda: store.put("a", 1),
        lambda: store.put("a", 1, "0"),
    ]
    for use in uses:
        with pytest.raises(StoreError, match=r"'views' is a window store.*put\(key, value, window_start\)"):
            use()
    with pytest.raises(StoreError, match="'views': a window starts at 0 ms or later"):
        store.put("a", 1, -1)
    uses = [
        lambda: store.fetch(None, 0),
        lambda: store.fetch(None, 0, 1),
        lambda: store.backward_fetch(None, 0, 1),
        lambda: store.put(None, 1, 0),
        lambda: store.put(None, None, 0),
    ]
    for use in uses:
        with pytest.raises(StoreError, match="'views'.*key of None"):
            use()
    assert list(store.all()) == []


def test_a_wrong_value_for_a_known_window_is_refused_as_well() -> None:
    """The fast path of a window that the store knows takes nothing else than the slow one."""
    store, _, _ = build(key_serde="str", value_serde="int")
    store.put("a", 1, 1)
    assert store.fetch("a", 1) == 1
    for value in ("text", 2**63, True):
        with pytest.raises(SerdeError, match="'views'"):
            store.put("a", value, 1)
    assert list(store.all()) == [(Windowed("a", 1, 60_001), 1)]


@settings(max_examples=examples(200))
@given(
    st.sampled_from([3, 6, 10_000]),
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put long", "delete", "fetch", "flush", "scan", "reopen"]),
            st.sampled_from("abcdefgh"),
            st.sampled_from([0, 1, 1, 1]),
        ),
        min_size=10,
        max_size=60,
    ),
)
def test_windows_whose_entries_are_kept_as_objects_or_not(kept: int, steps: list[tuple[str, str, int]]) -> None:
    """Each step touches one entry only, so that entries stay where they are: as objects, in bytes, or in both."""
    spec = window_store("views", retention="1h", window_size="1m", key_serde="str")
    store, buffer, context = build(key_serde="str")
    rows: dict[tuple[str, int], Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "CACHED_ENTRIES", kept)
        for number, (step, key, start) in enumerate(steps):
            if step == "flush":
                store.flush()
            elif step == "scan":
                assert list(store.fetch(key, 0, start)) == [
                    (at, rows[key, at]) for at in range(start + 1) if rows.get((key, at)) is not None
                ]
            elif step == "reopen":
                store.flush()
                store = spec.build(buffer, context)
            elif step != "fetch":
                rows[key, start] = {"put": number, "put long": "x" * 300 + str(number), "delete": None}[step]
                store.put(key, rows[key, start], start)
            assert store.fetch(key, start) == rows.get((key, start))
        for key, start in rows:
            assert store.fetch(key, start) == rows[key, start]
        store.flush()
        found = {(session.key, session.start): value for session, value in store.all()}
        assert found == {row: value for row, value in rows.items() if value is not None}


@pytest.mark.parametrize("count", range(1, 20))
def test_a_window_with_more_entries_than_are_kept_is_read_again(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(plain, "CACHED_ENTRIES", 8)
    store, _, _ = build(key_serde="str")
    for number in range(count):
        store.put(str(number), number, 0)
    store.flush()
    assert [store.fetch(str(number), 0) for number in range(count)] == list(range(count))


def test_a_fetch_of_a_later_window_does_not_move_time() -> None:
    store, _, context = build(key_serde="str", value_serde="int")
    with pytest.raises(SerdeError, match="'views'"):
        store.put("a", "text", 7_200_000)
    assert store.fetch("a", 7_200_000) is None
    assert store.fetch("a", 7_200_000) is None
    store.put("a", 1, 7_200_000)
    store.put("a", 1, 0)
    assert context.drops == 1


def test_a_wrong_declaration_names_the_store_and_the_option() -> None:
    with pytest.raises(ConfigError, match="retention of store 'views': expected at least its window_size.*'1h'.*'1m'"):
        window_store("views", retention="1m", window_size="1h")
    for retention, size in (("0s", "1s"), ("1s", "0s")):
        with pytest.raises(ConfigError, match="of store 'views'.*at least 1ms"):
            window_store("views", retention=retention, window_size=size)
    with pytest.raises(StoreError, match="window_store"):
        window_store("a/b", retention="1s", window_size="1s")


def test_what_a_serde_refuses_is_refused_at_once_and_changes_nothing() -> None:
    store, _, context = build(key_serde="str", value_serde="int")
    store.put("a", 1, 0)
    for key, value in (("a", "text"), ("b", 2**63), (1, 1), ("b", "text")):
        with pytest.raises(SerdeError, match="'views'"):
            store.put(key, value, 0)
    # The time of a refused value does not count: nothing was put.
    with pytest.raises(SerdeError, match="'views'"):
        store.put("a", "text", 10**9)
    store.put("c", 2, 5)
    assert list(store.all()) == [(Windowed("a", 0, 60_000), 1), (Windowed("c", 5, 60_005), 2)]
    assert context.drops == 0


def test_a_timestamped_store_takes_nothing_else() -> None:
    store, _, _ = build(timestamped=True)
    for value in (1, (1, 2), ValueAndTimestamp(1, 2**63), ValueAndTimestamp(1, True)):
        with pytest.raises(StoreError, match="'views'.*timestamp"):
            store.put("a", value, 0)
    store.put("a", ValueAndTimestamp(1, 5), 0)
    assert store.fetch("a", 0) == ValueAndTimestamp(1, 5)


def test_the_end_of_a_window_is_a_time() -> None:
    store, _, _ = build(key_serde="str")
    store.put("a", 1, MANY - 5)
    assert list(store.all()) == [(Windowed("a", MANY - 5, MANY), 1)]
    assert list(store.fetch("a", MANY - 5, MANY)) == [(MANY - 5, 1)]


def test_what_has_expired_stays_so_when_the_retention_grows() -> None:
    """Some of it was freed already; what is left must not come back."""
    store, buffer, context = build(key_serde="str", retention="2m")
    store.put("a", 1, 0)
    store.put("a", 2, 150_000)
    assert [value for _, value in store.all()] == [2]
    store.flush()
    spec = window_store("views", retention="1h", window_size="1m", key_serde="str")
    longer: Any = spec.build(buffer, context)  # with the bucket of the first program
    assert [value for _, value in longer.all()] == [2]
    longer.put("b", 3, 0)
    assert context.drops == 1
    longer.put("b", 4, 60_000)
    longer.put("b", 5, 600_000)
    assert [value for _, value in longer.all()] == [2, 4, 5]


def test_a_shorter_retention_hides_when_time_moves_on() -> None:
    store, buffer, context = build(key_serde="str")
    store.put("a", 1, 0)
    store.put("a", 2, 600_000)
    store.flush()
    spec = window_store("views", retention="5m", window_size="1m", key_serde="str")
    shorter: Any = spec.build(buffer, context)
    shorter.put("a", 3, 600_001)
    assert [value for _, value in shorter.all()] == [2, 3]


def test_iterators_end_early_and_by_themselves() -> None:
    store, _, _ = build(key_serde="str")
    for start in range(10):
        store.put("a", start, start)
    with store.fetch("a", 0, MANY) as entries:
        assert next(entries) == (0, 0)
    assert list(entries) == []
    scan = store.backward_all()
    assert next(scan) == (Windowed("a", 9, 60_009), 9)
    scan.close()
    scan.close()
    assert list(scan) == []
    assert list(store.fetch("a", 5, 4)) == []
    assert list(store.fetch("a", -10, 1)) == [(0, 0), (1, 1)]


def test_what_is_late_is_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    store, _, context = build(key_serde="str")
    store.put("a", 1, 10**9)
    for number in range(1000):
        store.put(f"k{number}", 1, number)
    assert context.drops == 1000
    assert len(caplog.records) == 1
    context.wall = 60_000
    store.put("a", 1, 0)
    assert len(caplog.records) == 2
    assert "store 'views': dropped an entry at 0 that had expired" in caplog.text
    assert caplog.messages[1].endswith("(the last of 1000 in 60 s)")


@pytest.mark.parametrize("flushes", [False, True])
def test_rows_of_many_keys_are_read_again_when_they_left_memory(monkeypatch: pytest.MonkeyPatch, flushes: bool) -> None:
    monkeypatch.setattr(plain, "CACHED_ENTRIES", 16)
    spec = window_store("s", retention="1s", window_size="1s", key_serde="str", retain_duplicates=True)
    context = CountingContext()
    context.fixed_options = spec.traits.fixed_options
    store: Any = spec.build(CommitBuffer(MemoryBackend.ephemeral(["s"]), "s"), context)
    keys = [f"k{number}" for number in range(20)]
    put: dict[str, list[tuple[int, int]]] = {key: [] for key in keys}
    for number in range(200):
        key, time = keys[number * 7 % 20], 100 + number * 3 % 50
        store.put(key, number, time)
        put[key].append((time, number))
        if flushes and not number % 30:
            store.flush()
        wanted = keys[number * 3 % 20]
        assert list(store.fetch(wanted, 0, 1_000)) == sorted(put[wanted], key=lambda each: each[0])


def test_a_key_too_long_to_be_kept_is_found_beside_others() -> None:
    """Keys of which nothing was put are answered without a look below; one that is not kept in memory never is."""
    store, _, _ = build(key_serde="str", retain_duplicates=True)
    store.put("short", 1, 5)
    store.put("long" * 100, 2, 40)
    assert list(store.fetch("long" * 100, 30, 50)) == [(40, 2)]
    assert list(store.fetch("short", 30, 50)) == []
