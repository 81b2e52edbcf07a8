"""Programs with an external sink, sinks that fail in ways of their own, and what a target must have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock import Sink, SinkPlace, SinkPosition, SinkRecord, SinkUnavailableError, SinkWriter
from penstock.dsl import StreamsBuilder
from penstock.testing import MemorySink


def direct(sink: Sink, **options: Any) -> StreamsBuilder:
    """Write topic "in" as it is: no topic lies between."""
    builder = StreamsBuilder()
    builder.stream("in").to_sink(sink, "target", **options)
    return builder


def through_outbox(sink: Sink, **options: Any) -> StreamsBuilder:
    """Write what a verb makes of topic "in", through a topic of the application's own."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to_sink(sink, "target", value_serde="str", **options)
    return builder


def rows(numbers: Iterable[int]) -> list[tuple[str | None, str | None, int]]:
    """Return records with distinct values."""
    return [(f"k{number % 5}", f"v{number}", number) for number in numbers]


def expected(numbers: Iterable[int], change: Callable[[str], str] = str.upper) -> Counter[tuple[str, str]]:
    return Counter((f"k{number % 5}", change(f"v{number}")) for number in numbers)


def written(sink: MemorySink) -> Counter[tuple[str, str]]:
    return Counter((record.key, record.value) for record in sink.records)


class Wrapped(Sink):
    """A sink around another one. `before` and `after` are called with the records of each write."""

    def __init__(
        self,
        inner: Sink,
        before: Callable[[Sequence[SinkRecord]], None] = lambda records: None,
        after: Callable[[Sequence[SinkRecord]], None] = lambda records: None,
    ) -> None:
        self.inner = inner
        self.before = before
        self.after = after

    def __str__(self) -> str:
        return str(self.inner)

    def open(self, place: SinkPlace) -> SinkWriter:
        return _WrappedWriter(self, self.inner.open(place))


class _WrappedWriter(SinkWriter):
    def __init__(self, sink: Wrapped, inner: SinkWriter) -> None:
        self._sink = sink
        self._inner = inner

    @property
    def position(self) -> SinkPosition | None:
        return self._inner.position

    def write(self, records: Sequence[SinkRecord], follows: SinkPosition | None, ends: SinkPosition) -> None:
        self._sink.before(records)
        self._inner.write(records, follows, ends)
        self._sink.after(records)

    def close(self) -> None:
        self._inner.close()


class Times:
    """Raises an error at some of its calls, by their numbers from 1."""

    def __init__(self, *numbers: int, error: type[Exception] = SinkUnavailableError) -> None:
        self.numbers = numbers
        self.error = error
        self.calls = 0

    def __call__(self, records: Sequence[SinkRecord]) -> None:
        self.calls += 1
        if self.calls in self.numbers:
            raise self.error(f"call {self.calls} fails")
