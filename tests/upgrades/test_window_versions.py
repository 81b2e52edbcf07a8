"""Any row of versions with other graces and emissions over one store, against a plain account of its windows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plugins.dsl import TimeWindows, hopping, tumbling

from ..rotation import examples
from .dsl_programs import ON_CLOSE, Chosen, program
from .restarts import Restarts

Sent = list[tuple[str, int, int]]
"""Key, start of the window, count."""
RECORDS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), max_size=6)
VERSIONS = st.lists(st.tuples(st.sampled_from([0, 5, 20]), st.booleans(), RECORDS), min_size=2, max_size=6)
KINDS: dict[str, Callable[[int], TimeWindows]] = {
    "tumbling": lambda grace: tumbling("5ms", grace=f"{grace}ms"),
    "hopping": lambda grace: hopping("6ms", every="2ms", grace=f"{grace}ms"),
}


@dataclass
class Account:
    """What windows have, and which of them a program has still to send."""

    observed: int = -1
    closed: int = -1
    grace: int = 0
    counts: dict[tuple[int, str], int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    unsent: set[tuple[int, str]] = field(default_factory=set)
    """Windows that are open, of which an `on_close` program has sent nothing."""

    def start(self, windows: TimeWindows, on_close: bool, records: list[tuple[str, int]]) -> Sent:
        """Return what a version sends."""
        if not records:
            return []  # It commits nothing, so the next version knows nothing of it.
        self.grace, sent = windows.grace_ms, Sent()
        if on_close:
            self.unsent |= {each for each in self.counts if self.ends[each[0]] > self._closed()}
        for key, time in records:
            if not on_close:
                sent += self._take(self.unsent)
            has_moved, self.observed = time > self.observed, max(self.observed, time)
            self.closed = self._closed()
            if on_close and has_moved:
                sent += self._take({each for each in self.unsent if self.ends[each[0]] <= self.closed})
            for start, end in windows.windows_for(time):
                if end > self.closed:
                    self.ends[start] = end
                    self.counts[start, key] = self.counts.get((start, key), 0) + 1
                    if on_close:
                        self.unsent.add((start, key))
                    else:
                        sent.append((key, start, self.counts[start, key]))
        return sent

    def _closed(self) -> int:
        return max(self.closed, self.observed - self.grace)

    def _take(self, due: set[tuple[int, str]]) -> Sent:
        self.unsent = self.unsent - due
        return [(key, start, self.counts[start, key]) for start, key in sorted(due)]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40), deadline=None)
@given(versions=VERSIONS)
def test_no_window_is_lost_or_sent_twice(kind: str, versions: list[tuple[int, bool, list[tuple[str, int]]]]) -> None:
    account = Account()
    with tempfile.TemporaryDirectory() as directory:
        restarts = Restarts(Path(directory), statestore_cache_max_bytes=0)
        for grace, on_close, records in versions:
            windows = KINDS[kind](grace)
            emit = ON_CLOSE if on_close else {"emit": "on_update"}
            version = program("tumbling", Chosen(windows=windows, emit=emit))
            sent = restarts.start(version, [("left", key, "v", time) for key, time in records])
            expected = account.start(windows, on_close, records)
            assert [(key, value) for _, key, value, _ in sent] == [
                (f"Windowed(key={key!r}, start={start}, end={account.ends[start]})".encode(), str(count).encode())
                for key, start, count in expected
            ]
