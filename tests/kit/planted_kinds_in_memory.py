"""Right kinds of stores with a part in memory, and kinds with one wrong line each that only a restart shows."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from penstock import BytesStore, StateStore, StoreContext, StoreSpec
from penstock.plugins.testing.contracts.state_store import StateStoreContract


@dataclass(frozen=True)
class Spec(StoreSpec):
    """Declares a store of the class of this module that `variant` names."""

    variant: str = ""

    def build(self, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        return globals()[self.variant](bytes_store, context)  # type: ignore[no-any-return]


class Queue(StateStore):
    """Right: texts in the order in which they were pushed, with tickets; in memory once it was used."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        self.name = below.name
        self._below = below
        self._loaded: deque[tuple[bytes, bytes]] | None = None
        self._last = 0

    def _queue(self) -> deque[tuple[bytes, bytes]]:
        if self._loaded is None:
            self._loaded = self._read()
            self._last = int(self._below.get(b"") or b"0")
        return self._loaded

    def _read(self) -> deque[tuple[bytes, bytes]]:
        return deque(self._below.range(b"\x00"))

    def _row(self, ticket: int) -> bytes:
        return b"\x00%09d" % ticket

    def _saved(self, ticket: int) -> bytes:
        return b"%d" % ticket

    def push(self, text: str) -> int:
        queue = self._queue()
        self._last += 1
        row = self._row(self._last), text.encode()
        self._below.put(*row)
        self._below.put(b"", self._saved(self._last))
        queue.append(row)
        return self._last

    def pop(self) -> str | None:
        queue = self._queue()
        if not queue:
            return None
        row, data = queue.popleft()
        self._below.put(row, None)
        return data.decode()

    def waiting(self) -> Iterator[str]:
        return (data.decode() for _, data in list(self._queue()))

    def discard(self) -> None:
        self._loaded = None


class ThreeDigits(Queue):
    def _row(self, ticket: int) -> bytes:
        return b"\x00%03d" % ticket


class RowsOfTwoBytes(Queue):
    """The low one first."""

    def _row(self, ticket: int) -> bytes:
        return b"\x00" + ticket.to_bytes(2, "little")


class TicketsOfOneByte(Queue):
    def _saved(self, ticket: int) -> bytes:
        return b"%d" % (ticket % 256)


class ReadsTheLastThousand(Queue):
    def _read(self) -> deque[tuple[bytes, bytes]]:
        return deque(self._below.range(b"\x00"), maxlen=1_000)


class SavesHundreds(Queue):
    """The last ticket is written to two digits."""

    def _saved(self, ticket: int) -> bytes:
        return f"{ticket:.3g}".encode() if ticket < 1_000 else b"%d" % (ticket // 10 * 10)


class Recent(StateStore):
    """Right: values of the three keys that were put last."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        self.name = below.name
        self._below = below
        self._known: OrderedDict[str, int] | None = None

    def _loaded(self) -> OrderedDict[str, int]:
        if self._known is None:
            self._known = OrderedDict(json.loads(self._below.get(b"") or b"[]"))
        return self._known

    def put(self, key: str, value: int) -> None:
        known = self._loaded()
        known.pop(key, None)
        known[key] = value
        while len(known) > 3:
            known.popitem(last=False)
        self._below.put(b"", self._saved(known))

    def _saved(self, known: OrderedDict[str, int]) -> bytes:
        return json.dumps([*known.items()]).encode()

    def get(self, key: str) -> int | None:
        return self._loaded().get(key)

    def keys(self) -> list[str]:
        return sorted(self._loaded())

    def discard(self) -> None:
        self._known = None


class ReadsCountAsUse(Recent):
    def get(self, key: str) -> int | None:
        if key in self._loaded():
            self._loaded().move_to_end(key)
        return super().get(key)


class SavesInOrderOfKeys(Recent):
    def _saved(self, known: OrderedDict[str, int]) -> bytes:
        return json.dumps(sorted(known.items())).encode()


class SavesTheLastTwo(Recent):
    def _saved(self, known: OrderedDict[str, int]) -> bytes:
        return json.dumps(
            [*known.items()][-2:] if len(known) == 3 and 0 in known.values() else [*known.items()]
        ).encode()


class Seen(StateStore):
    """Right: when a key was seen last, in ms, up to an hour before the newest time of all keys."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        self.name = below.name
        self._below = below
        self._newest: int | None = None
        self._saved = -1

    def _time(self) -> int:
        if self._newest is None:
            self._newest = self._saved = int(self._below.get(b"") or b"-1")
        return self._newest

    def see(self, key: str, at: int) -> int | None:
        before = self.last(key)
        if at > self._time():
            self._newest = at
            self._keep(at)
        self._below.put(b"k" + key.encode(), b"%d" % at)
        return before

    def _keep(self, newest: int) -> None:
        self._saved = newest
        self._below.put(b"", b"%d" % newest)

    def last(self, key: str) -> int | None:
        newest, data = self._time(), self._below.get(b"k" + key.encode())
        return None if data is None or int(data) < newest - 3_600_000 else int(data)

    def discard(self) -> None:
        self._newest = None


class KeepsTimeEachMinute(Seen):
    def _keep(self, newest: int) -> None:
        if newest >= self._saved + 60_000:
            super()._keep(newest)


class KeepsWholeSeconds(Seen):
    def _keep(self, newest: int) -> None:
        super()._keep(newest // 1_000 * 1_000)


class KeepsTimeOfEverySecondRow(Seen):
    """If the newest time is even."""

    def _keep(self, newest: int) -> None:
        if newest % 2 == 0:
            super()._keep(newest)


_KEYS = st.text("ab\u00e9\u4e2d", max_size=2)
_NAMES = st.sampled_from(["a", "b", "c", "d"])


class TestQueue(StateStoreContract):
    spec = Spec("queue", variant="Queue")
    calls = st.one_of(
        st.tuples(st.just("push"), st.text(max_size=3)), st.tuples(st.just("pop")), st.tuples(st.just("waiting"))
    )


class TestRecent(StateStoreContract):
    spec = Spec("recent", variant="Recent")
    calls = st.one_of(
        st.tuples(st.just("put"), _NAMES, st.integers(0, 9)),
        st.tuples(st.just("get"), _NAMES),
        st.tuples(st.just("keys")),
    )


class TestSeen(StateStoreContract):
    spec = Spec("seen", variant="Seen")
    calls = st.one_of(st.tuples(st.just("see"), _KEYS, st.integers(0, 10_000_000)), st.tuples(st.just("last"), _KEYS))


IN_MEMORY: list[tuple[type, str]] = [
    *((TestQueue, name) for name in ("ThreeDigits", "RowsOfTwoBytes", "TicketsOfOneByte", "ReadsTheLastThousand")),
    *((TestQueue, name) for name in ("SavesHundreds",)),
    *((TestRecent, name) for name in ("ReadsCountAsUse", "SavesInOrderOfKeys", "SavesTheLastTwo")),
    *((TestSeen, name) for name in ("KeepsTimeEachMinute", "KeepsWholeSeconds", "KeepsTimeOfEverySecondRow")),
]
