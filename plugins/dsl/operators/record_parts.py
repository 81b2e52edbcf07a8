"""WithTimestamp and WithHeaders: the processors of the verbs that replace a record's timestamp or headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock import Headers, ProcessingError, ProcessorContext, Record, TopologyError
from penstock.operator import Operator, Run
from penstock.record import as_record

from ..graph.functions import check_function

HeadersLike = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
"""Headers as pairs, or as a mapping, which has one value of each name."""

Given = Literal["value", "key and value", "record"]
"""What a function gets."""


@dataclass(kw_only=True, eq=False)
class OfRecord(Operator):
    """An operator with a function of the value, of key and value, or of the whole record; `given` says which."""

    reads_time = False
    forwards_each = forwards_last = True

    function: Callable[..., Any]
    given: Given = "value"

    def of_record(self) -> Callable[[Any], Any]:
        """Return the function of a record, or of a plain tuple of its four parts."""
        function, given = self.function, self.given
        if given == "record":
            return lambda record: function(as_record(record))
        if given == "value":
            return lambda record: function(record[1])
        return lambda record: function(record[0], record[1])


def check_of_record(verb: str, function: Any, *, with_key: bool, with_record: bool) -> dict[str, Any]:
    """Return the options of an OfRecord. Raises TopologyError for a function that cannot be called so."""
    if with_key and with_record:
        raise TopologyError(f"{verb}: with_record=True gives the whole record, with its key; leave out with_key=True")
    given: Given = "record" if with_record else "key and value" if with_key else "value"
    check_function(verb, function, *given.split(" and "))
    return {"function": function, "given": given}


class WithTimestamp(OfRecord):
    """Forwards each record with the timestamp that `function` returns: an int of 0 or more, in ms."""

    def bind(self, context: ProcessorContext) -> Run:
        forward, timestamp_of = context.send, self.of_record()

        def run(record: Record) -> None:
            timestamp = timestamp_of(record)
            if type(timestamp) is not int or timestamp < 0:
                raise ProcessingError(
                    f"with_timestamp: the function returned {timestamp!r}, expected milliseconds since the epoch, an "
                    "int of 0 or more; of a datetime with a time zone that is int(at.timestamp() * 1000)"
                )
            forward((record[0], record[1], timestamp, record[3]))

        return run


class WithHeaders(OfRecord):
    """Forwards each record with the headers that `function` returns: pairs of a name and bytes, or a mapping."""

    def bind(self, context: ProcessorContext) -> Run:
        forward, headers_of = context.send, self.of_record()

        def run(record: Record) -> None:
            forward((record[0], record[1], record[2], _headers(headers_of(record))))

        return run


def _headers(made: Any) -> Headers:
    """Return the headers that a function made. Raises ProcessingError for anything else."""
    pairs = made.items() if isinstance(made, Mapping) else made
    if not isinstance(pairs, Iterable) or isinstance(pairs, (str, bytes)):
        raise ProcessingError(f"with_headers: {_EXPECTED}, found {made!r}")
    headers: list[Any] = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ProcessingError(f"with_headers: {_EXPECTED}, found {pair!r}")
        name, value = pair
        if isinstance(value, str):
            raise ProcessingError(
                f"with_headers: header {name!r} is the text {value!r}; write its bytes: TEXT.encode()"
            )
        if value is not None and not isinstance(value, bytes):
            raise ProcessingError(f"with_headers: header {name!r} is {value!r}, expected bytes or None")
        headers.append((name, value))
    return tuple(headers)


_EXPECTED = "the function must return headers, pairs of a name and bytes or None, or a mapping of them"
