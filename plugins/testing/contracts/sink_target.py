"""SinkTarget: what the suites of both kinds of sinks know of a target, and how they read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from penstock import Sink, SinkError, SinkPlace, SinkRecord, StagedSink

S = TypeVar("S", Sink, StagedSink)
E = TypeVar("E", bound=SinkError)

PLACE = SinkPlace("contract", "target", "contract-target-repartition", 0)
TOPIC_ID = "an id"


class SinkTarget(Generic[S]):
    """A sink, and the content of its target."""

    outlives_processes: ClassVar[bool] = True
    """Whether the target is outside of this process: then processes are killed in the middle of a write."""
    refused_value: Any = None
    """A value that the target refuses, if there is one: one that does not fit a type, or breaks a constraint."""

    def make_sink(self) -> S:
        """Return a sink to a target without records and positions; called once in each test."""
        raise NotImplementedError("make_sink: return a sink to an empty target")

    def content(self, sink: S) -> Iterable[tuple[Any, Any]]:
        """Return the key and value of each record that a reader of the target finds, without the sink's writers."""
        raise NotImplementedError("content: return what the target has")

    def value(self, number: int) -> Any:
        """Return a value that the target takes, another one for each number."""
        return number

    def broken_sinks(self) -> Iterable[S]:
        """Return sinks that a person has to repair, for instance with a column that the table lacks."""
        return ()

    def _records(self, first: int, count: int) -> list[SinkRecord]:
        return [
            SinkRecord(f"key {number}", self.value(number), number, (), number)
            for number in range(first, first + count)
        ]

    def _expect_content(self, sink: S, records: Sequence[SinkRecord]) -> None:
        expected = sorted((repr(record.key), repr(record.value)) for record in records)
        found = sorted((repr(key), repr(value)) for key, value in self.content(sink))
        assert found == expected, (
            f"the target has {len(found)} records, expected {len(expected)}; not expected: "
            f"{[each for each in found if each not in expected][:5]}, lacking: "
            f"{[each for each in expected if each not in found][:5]}"
        )


def raised(kind: type[E], call: Callable[[], object]) -> E:
    """Return the error of this kind that a call raises. Raises AssertionError if it raises another one, or none."""
    try:
        call()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"expected {kind.__name__}, and it raised {error!r}") from error
    raise AssertionError(f"expected {kind.__name__}, and it raised nothing")
