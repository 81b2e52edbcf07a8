"""What a store asks of its task, for tests of stores alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.plugins.serdes.msgpack import MsgpackSerde
from penstock.serde import BytesSerde, FloatSerde, IntSerde, Serde, StrSerde
from penstock.store import IndexStore
from penstock.store.record_cache import RecordCache
from penstock.support.repeats import Repeats

SERDES: dict[str | None, type[Serde[Any]]] = {
    None: MsgpackSerde,
    "str": StrSerde,
    "int": IntSerde,
    "float": FloatSerde,
    "bytes": BytesSerde,
}


class TestContext:
    """A StoreContext whose times a test sets, and an index if the store needs one."""

    __test__ = False
    application_id = "application"
    task_id = "0_0"

    def __init__(self) -> None:
        self.now = -1
        self.wall = 0
        self.fixed_options: Mapping[str, int] = {}
        self.given_index: IndexStore | None = None
        self.expires = False
        self.repeats = Repeats(self.wall_clock)

    def serde(self, given: str | Serde[Any] | None, store: str) -> Serde[Any]:
        return given if isinstance(given, Serde) else SERDES[given]()

    @property
    def index(self) -> IndexStore:
        assert self.given_index is not None, "the test gives no index"
        return self.given_index

    @property
    def record_cache(self) -> RecordCache:
        raise AssertionError("no record cache was asked for")

    def stream_time(self) -> int:
        return self.now

    def wall_clock(self) -> int:
        return self.wall

    def dropped(self, reason: str, count: int = 1) -> None:
        raise AssertionError(reason)
