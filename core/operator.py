"""Operator: a processor whose work is compiled once into a function. The DSL's verbs use it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from .processor import Processor, ProcessorContext
from .record import Record
from .support.callbacks import bound

__all__ = ["Operator", "Run", "new"]

Run = Callable[[Any], Any]
"""Gets a record, which may be a plain tuple of its four parts: key, value, timestamp and headers."""

new = tuple.__new__
"""Makes a NamedTuple of the tuple of its parts, in half the time that its constructor takes."""


class Operator(Processor):
    """A processor whose work is a function that `bind` makes; a record costs the call of that function.

    `bind` looks up stores, counters and `context.send` once, and keeps them in a closure. The function reads a record
    by position, because it may be a plain tuple, and sends plain tuples. The engine makes a Record of one wherever a
    processor of another kind gets it. Stores, timers, schedules and flush listeners are those of any Processor.

    >>> from penstock import Topology, key_value_store
    >>> class Count(Operator):
    ...     def __init__(self, store):
    ...         self.store = store
    ...     @classmethod
    ...     def stores(cls, store):
    ...         return [key_value_store(store)]
    ...     def bind(self, context):
    ...         counts, send = context.get_store(self.store), context.send
    ...         def run(record):
    ...             key, _, timestamp, headers = record
    ...             count = (counts.get(key) or 0) + 1
    ...             counts.put(key, count)
    ...             send((key, count, timestamp, headers))
    ...         return run
    >>> topology = Topology().add_source("in", "visits").add_processor("count", Count, "in", store="counts")
    >>> _ = topology.add_sink("out", "counts", "count", value_serde="int")
    >>> from penstock.testing import TopologyTestDriver
    >>> with TopologyTestDriver(topology) as driver:
    ...     for page in ("/", "/a"):
    ...         driver.pipe("visits", "anna", page)
    ...     [record.value for record in driver.read_all("counts")]
    [1, 2]
    """

    takes_tuples: ClassVar[bool] = True
    holds_records: ClassVar[bool] = False
    """Whether it holds records by `context.batched`: then what it forwards keeps its place among the records that
    reach the nodes behind it by other ways, or their stores."""
    answers_later: ClassVar[bool] = False
    """Whether it takes records by `context.in_flight`."""
    holds_back: bool = False
    """Whether what follows from a record may leave only when time has passed: for nodes behind it, which wait for
    silence, a record that it gets is none."""
    reads_time: bool = True
    """Whether what it does may depend on the order of records of different keys, or on stream time. Where it does not,
    results that come later (`answers_later`) reach it out of order."""
    _run: Run | None = None

    @abstractmethod
    def bind(self, context: ProcessorContext) -> Run:
        """Return the function that gets each record. Called once, before `init`; do not send or schedule here."""

    def process(self, record: Record) -> None:
        """Handle one record; the engine calls the function that `bind` returned instead."""
        if self._run is None:
            self._run = bound(self, self.context)
        self._run(record)
