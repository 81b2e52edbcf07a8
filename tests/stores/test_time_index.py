"""The index of a store has its keys in the order of time, whatever was committed or lost, and is built in portions."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.memory import MemoryBackend
from penstock.stores.rows.time_index import IndexBuild, TimeIndex

from ..rotation import examples

TIME = st.integers(-5, 5) | st.sampled_from([-(2**63), 2**63 - 1, 0, 255, 256, -256])
KEY = st.binary(max_size=2)
Row = tuple[int, bytes]


class Indexed(RuleBasedStateMachine):
    """Two clocks in one index, and two sets of rows for each: what is committed, what is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = MemoryBackend.ephemeral(["i"])
        self.buffer = CommitBuffer(self.backend, "i")
        self.buffer.put(b"", b"of the build")
        self.clocks = [TimeIndex(self.buffer, 1), TimeIndex(self.buffer, 2)]
        self.committed: list[set[Row]] = [set(), set()]
        self.seen: list[set[Row]] = [set(), set()]

    @rule(clock=st.integers(0, 1), time=TIME, key=KEY)
    def put(self, clock: int, time: int, key: bytes) -> None:
        self.clocks[clock].put(time, key)
        self.seen[clock].add((time, key))

    @rule(clock=st.integers(0, 1), time=TIME, key=KEY)
    def remove(self, clock: int, time: int, key: bytes) -> None:
        self.clocks[clock].remove(time, key)
        self.seen[clock].discard((time, key))

    @rule(clock=st.integers(0, 1), up_to=TIME | st.none())
    def look(self, clock: int, up_to: int | None) -> None:
        rows = sorted(self.seen[clock])
        assert list(self.clocks[clock].rows(up_to)) == [row for row in rows if up_to is None or row[0] <= up_to]
        assert self.clocks[clock].first() == (rows[0][0] if rows else None)

    @rule(clock=st.integers(0, 1), up_to=TIME, limit=st.integers(0, 3))
    def sweep(self, clock: int, up_to: int, limit: int) -> None:
        due = [row for row in sorted(self.seen[clock]) if row[0] <= up_to][:limit]
        assert self.clocks[clock].sweep(up_to, limit) == due
        self.seen[clock].difference_update(due)

    @rule(is_committed=st.booleans())
    def end(self, is_committed: bool) -> None:
        if is_committed:
            self.backend.write({"i": self.buffer.changes()}, None, None)  # type: ignore[arg-type]
            self.committed = [set(rows) for rows in self.seen]
        else:
            self.seen = [set(rows) for rows in self.committed]
        self.buffer.clear()


TestIndexed = Indexed.TestCase
TestIndexed.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)


def test_a_build_goes_on_where_the_last_commit_left_it() -> None:
    backend = MemoryBackend.ephemeral(["s", "i"])
    keys = [b"", b"a", b"a\x00", b"b", b"c"]
    backend.write({"s": [(key, b"v") for key in keys]}, None, "v1")
    store, index = CommitBuffer(backend, "s"), CommitBuffer(backend, "i")
    added: list[bytes] = []

    def step(form: bytes = b"") -> bool:
        added.clear()
        return IndexBuild(index, form).step(store, lambda key, value: added.append(key), 2)

    def commit() -> None:
        backend.write({"i": index.changes()}, "v1", "v1")
        index.clear()

    assert not step()
    assert added == keys[:2]
    commit()
    assert not step()
    assert added == keys[2:4]
    index.clear()  # the commit failed
    assert not step()
    assert added == keys[2:4]
    commit()
    assert not IndexBuild(index).is_complete
    assert step()
    assert added == keys[4:]
    commit()
    assert IndexBuild(index).is_complete
    assert step()
    assert not added
    assert not IndexBuild(index, b"other").is_complete, "rows of another form are made again, from the first entry on"
    step(b"other")
    assert added == keys[:2]
    index.put(b"", None)
    step()
    assert added == keys[:2], "without its row, an index has nothing"
