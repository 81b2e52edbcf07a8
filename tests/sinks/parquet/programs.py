"""Programs with Parquet files, a sink that fails at some writes, and what the files must have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from penstock import SinkPlace, SinkRecord, StagedSink, StagedWriter
from penstock.contrib.parquet import parquet
from penstock.dsl import StreamsBuilder

from ..programs import Times

COLUMNS = {"name": "string", "value": "string"}


def sink(location: Path, **options: Any) -> Any:
    return parquet(str(location), **{"columns": COLUMNS, "key": "name", "max_age": "0s", **options})


def direct(made: StagedSink) -> StreamsBuilder:
    """Write topic "in" as it is: no topic lies between."""
    builder = StreamsBuilder()
    builder.stream("in").to_sink(made, "files")
    return builder


def through_outbox(made: StagedSink) -> StreamsBuilder:
    """Write what a verb makes of topic "in", through a topic of the application's own."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to_sink(made, "files", value_serde="str")
    return builder


PROGRAMS = {"direct": direct, "through a topic": through_outbox}
CHANGES: dict[str, Callable[[str], str]] = {"direct": str, "through a topic": str.upper}


def expected(numbers: Iterable[int], change: Callable[[str], str] = str.upper) -> Counter[tuple[Any, ...]]:
    return Counter((f"k{number % 5}", change(f"v{number}")) for number in numbers)


class Flaky(StagedSink):
    """A sink around another one. `before` and `after` are called at each write."""

    def __init__(self, inner: StagedSink, before: Times | None = None, after: Times | None = None) -> None:
        self.inner = inner
        self.before = before or Times()
        self.after = after or Times()

    def __str__(self) -> str:
        return str(self.inner)

    def open(self, place: SinkPlace) -> StagedWriter:
        return _FlakyWriter(self, self.inner.open(place))


class _FlakyWriter(StagedWriter):
    def __init__(self, flaky: Flaky, inner: StagedWriter) -> None:
        self._flaky = flaky
        self._inner = inner

    def begin(self, store: Any, topic_id: str) -> None:
        self._inner.begin(store, topic_id)

    def stage(self, records: Sequence[SinkRecord], now_ms: int) -> Callable[[], None] | None:
        write = self._inner.stage(records, now_ms)
        if write is None:
            return None
        right = write

        def fail() -> None:
            self._flaky.before([])
            right()
            self._flaky.after([])

        return fail

    @property
    def due(self) -> int | None:
        return self._inner.due

    def close(self) -> None:
        self._inner.close()
