"""MemorySink: a target in the memory of this process, for tests; the reference of `SinkContract`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from penstock import (
    AnySink,
    Sink,
    SinkError,
    SinkMovedError,
    SinkPlace,
    SinkPosition,
    SinkRecord,
    SinkRefusedError,
    SinkUnavailableError,
    SinkWriter,
    TopologyError,
)


class _Table:
    """The records of one name, and the positions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: list[tuple[SinkPlace, SinkRecord]] = []
        self.positions: dict[SinkPlace, SinkPosition] = {}
        self.is_away = False


_tables: dict[str, _Table] = {}


class MemorySink(Sink):
    """A target of this process: copies of a sink with the same table, also pickled ones, write to one list.

    `refuses`: a function of a record that returns why it is refused, or "". `is_away` may be set, for a target that
    cannot be reached.

    >>> from penstock.dsl import StreamsBuilder
    >>> from penstock.testing import MemorySink, TopologyTestDriver
    >>> loud, builder = MemorySink("loud"), StreamsBuilder()
    >>> builder.stream("words").map_values(str.upper).to_sink(loud, "loud")
    >>> with TopologyTestDriver(builder) as driver:
    ...     driver.pipe("words", "a", "hello")
    ...     driver.pipe("words", "b", "world")
    >>> loud.values()
    ['HELLO', 'WORLD']
    >>> loud.forget()
    """

    def __init__(self, table: str, refuses: Callable[[SinkRecord], str] | None = None) -> None:
        if not isinstance(table, str) or not table:
            raise TopologyError(f"MemorySink: expected a name, found {table!r}")
        self.table = table
        self._refuses = refuses

    def __str__(self) -> str:
        return f"memory sink {self.table!r}"

    def __repr__(self) -> str:
        return f"MemorySink({self.table!r})"

    @property
    def _content(self) -> _Table:
        return _tables.setdefault(self.table, _Table())

    def open(self, place: SinkPlace) -> SinkWriter:
        return _MemoryWriter(self._content, place, self._refuses)

    @property
    def records(self) -> list[SinkRecord]:
        """The records, in the order in which they were written."""
        return [record for _, record in list(self._content.records)]

    def values(self) -> list[Any]:
        """Return the records' values, in the order in which they were written."""
        return [record.value for record in self.records]

    @property
    def positions(self) -> dict[SinkPlace, SinkPosition]:
        """The positions by place; a test may change them."""
        return self._content.positions

    @property
    def is_away(self) -> bool:
        """Whether the target cannot be reached."""
        return self._content.is_away

    @is_away.setter
    def is_away(self, is_away: bool) -> None:
        self._content.is_away = is_away

    def forget(self) -> None:
        """Delete the records and the positions."""
        _tables.pop(self.table, None)


class ScratchTarget(Sink):
    """Takes the place of all targets of a program that is run aside, as a profile does: it keeps positions only."""

    def __init__(self) -> None:
        self._content = _Table()

    def __str__(self) -> str:
        return "a target that keeps no records"

    def __call__(self, node: str, sink: AnySink) -> Sink:
        """Take the place of a sink; for `World.sink`."""
        return self

    def open(self, place: SinkPlace) -> SinkWriter:
        return _MemoryWriter(self._content, place, None, keeps=False)


class _MemoryWriter(SinkWriter):
    def __init__(
        self,
        table: _Table,
        place: SinkPlace,
        refuses: Callable[[SinkRecord], str] | None,
        *,
        keeps: bool = True,
    ) -> None:
        self._keeps = keeps
        self._table = table
        self._place = place
        self._refuses = refuses
        self._is_closed = False
        self._check()
        self._position = table.positions.get(place)

    def _check(self) -> None:
        if self._is_closed:
            raise SinkError("used after it was closed")
        if self._table.is_away:
            raise SinkUnavailableError("it is away")

    @property
    def position(self) -> SinkPosition | None:
        return self._position

    def write(self, records: Sequence[SinkRecord], follows: SinkPosition | None, ends: SinkPosition) -> None:
        self._check()
        with self._table.lock:
            position = self._table.positions.get(self._place)
            if position != follows:
                raise SinkMovedError(f"its position is {position}, and this write follows {follows}")
            for record in records:
                if self._refuses is not None and (why := self._refuses(record)):
                    raise SinkRefusedError(why)
            if self._keeps:
                self._table.records += [(self._place, deepcopy(record)) for record in records]
            self._table.positions[self._place] = ends

    def close(self) -> None:
        self._is_closed = True
