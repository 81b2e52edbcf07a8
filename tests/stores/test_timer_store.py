"""A store of timers, against a dict: with commits, failures, re-openings and restores."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from penstock.clock import PunctuationType
from penstock.store import Change
from penstock.store.kinds.timers import TimerStore, TimerStoreSpec
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.kinds import timers
from penstock.stores.memory import MemoryBackend

from ..rotation import examples
from .context import TestContext

KEY = st.sampled_from([b"", b"a", b"b", b"ba"])
CLOCK = st.sampled_from(PunctuationType)
Timer = tuple[PunctuationType, bytes]


class Kept(RuleBasedStateMachine):
    """Timers that fire in rounds, as a task has them fire: a round sees only times after the one that fired last."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = MemoryBackend.ephemeral(["t", "i"])
        self.backend.write({}, None, "v")
        self.now = dict.fromkeys(PunctuationType, 0)
        self.history: dict[bytes, bytes | None] = {}
        self.seen: dict[Timer, int] = {}
        self.committed = dict(self.seen), dict(self.now)
        self.open()

    def open(self) -> None:
        context = TestContext()
        self.buffer, self.index = CommitBuffer(self.backend, "t"), CommitBuffer(self.backend, "i")
        context.given_index = self.index
        store = TimerStoreSpec("t", key_serde="bytes").build(self.buffer, context)
        assert isinstance(store, TimerStore)
        self.store = store

    @rule(key=KEY, ahead=st.integers(0, 5), clock=CLOCK)
    def set(self, key: bytes, ahead: int, clock: PunctuationType) -> None:
        self.store.set(key, self.now[clock] + ahead, clock)
        self.seen[clock, key] = self.now[clock] + ahead

    @rule(key=KEY, clock=CLOCK)
    def cancel(self, key: bytes, clock: PunctuationType) -> None:
        self.store.cancel(key, clock)
        self.seen.pop((clock, key), None)

    @rule(clock=CLOCK)
    def look(self, clock: PunctuationType) -> None:
        listed = sorted((at, key) for (of, key), at in self.seen.items() if of is clock)
        assert [(at, key) for key, at in self.store.entries(clock)] == listed
        due = self.store.next_due(clock)
        assert due is None or due <= min((at for at, _ in listed), default=due)
        assert due is not None or not listed

    @rule(
        clock=CLOCK, step=st.integers(0, 3), again=st.dictionaries(st.integers(0, 3), st.tuples(KEY, st.integers(0, 5)))
    )
    def fire(self, clock: PunctuationType, step: int, again: dict[int, tuple[bytes, int]]) -> None:
        """Let time pass; the timers that fire set others, for later times, or (0) cancel them."""
        now = self.now[clock] = self.now[clock] + step
        number = 0
        while (first := self.store.first_due(clock, now)) is not None:
            expected = min((at, key) for (of, key), at in self.seen.items() if of is clock)
            key, at = self.store.take(clock)
            assert first == (at, key) == expected
            del self.seen[clock, key]
            if number in again:
                other, later = again[number]
                if later:
                    self.store.set(other, at + later, clock)
                    self.seen[clock, other] = at + later
                else:
                    self.cancel(other, clock)
            number += 1
        assert all(at > now for (of, _), at in self.seen.items() if of is clock)
        due = self.store.next_due(clock)
        assert due is None or due > now, "it would be fired for ever"

    @rule()
    def commit(self) -> None:
        self.store.flush()
        changes = self.buffer.changes()
        self.history.update(changes)
        self.backend.write({"t": changes, "i": self.index.changes()}, "v", "v")
        self.buffer.clear()
        self.index.clear()
        self.committed = dict(self.seen), dict(self.now)
        assert self.backend.approximate_count("i") <= 1 + len(self.seen)

    @rule()
    def fail(self) -> None:
        self.buffer.clear()
        self.index.clear()
        self.store.discard()
        self.seen, self.now = dict(self.committed[0]), dict(self.committed[1])

    @rule()
    def reopen(self) -> None:
        self.fail()
        self.open()

    @rule()
    def restore(self) -> None:
        self.fail()
        rows: list[Change] = [(key, row) for key, row in sorted(self.history.items()) if row is not None]
        self.backend = MemoryBackend.ephemeral(["t", "i"])
        self.backend.write({"t": rows, "i": [(b"", None)]}, None, "v")
        self.open()


TestKept = Kept.TestCase
TestKept.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "_READ", 2)
    monkeypatch.setattr(timers, "_BUILT", 3)


def fired(machine: Kept, now: int) -> list[bytes]:
    found = []
    while machine.store.first_due(PunctuationType.STREAM_TIME, now) is not None:
        found.append(machine.store.take(PunctuationType.STREAM_TIME)[0])
    return found


def test_a_timer_for_the_time_of_one_that_has_fired_fires_too() -> None:
    machine = Kept()
    machine.store.set(b"b", 5, PunctuationType.STREAM_TIME)
    assert fired(machine, 5) == [b"b"]
    machine.store.set(b"a", 5, PunctuationType.STREAM_TIME)
    assert fired(machine, 5) == [b"a"]


def test_a_timer_that_is_cancelled_while_others_fire_does_not() -> None:
    machine = Kept()
    for key in (b"a", b"b", b"c"):
        machine.store.set(key, 5, PunctuationType.STREAM_TIME)
    assert machine.store.first_due(PunctuationType.STREAM_TIME, 5) == (5, b"a")
    machine.store.take(PunctuationType.STREAM_TIME)
    machine.store.cancel(b"b", PunctuationType.STREAM_TIME)
    assert fired(machine, 5) == [b"c"]
