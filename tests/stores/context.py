"""What a store asks of its task, for tests of stores alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.plugins.serdes.msgpack import MsgpackSerde
from penstock.serde import BytesSerde, FloatSerde, IntSerde, Serde, StrSerde
from penstock.store import BytesStore

SERDES: dict[str | None, type[Serde[Any]]] = {
    None: MsgpackSerde,
    "str": StrSerde,
    "int": IntSerde,
    "float": FloatSerde,
    "bytes": BytesSerde,
}


class TestContext:
    """A StoreContext whose stream time a test sets."""

    __test__ = False
    application_id = "application"
    task_id = "0_0"

    def __init__(self) -> None:
        self.now = -1
        self.wall = 0
        self.fixed_options: Mapping[str, int] = {}

    def serde(self, given: str | Serde[Any] | None, store: str) -> Serde[Any]:
        return given if isinstance(given, Serde) else SERDES[given]()

    @property
    def index(self) -> BytesStore:
        raise AssertionError("no index was asked for")

    def stream_time(self) -> int:
        return self.now

    def wall_clock(self) -> int:
        return self.wall

    def dropped(self, reason: str, count: int = 1) -> None:
        raise AssertionError(reason)
