"""From and Connected: two streams as the inputs of one processor that can tell their records apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run
from penstock.record import as_record
from penstock.support.callbacks import watched

from ..graph.serdes import KnownSerde, check_same_keys
from ..graph.step import Writer
from .user_step import UserStep

Function = Callable[[Record, ProcessorContext], Any]


@dataclass(kw_only=True, eq=False)
class From(Operator):
    """Forwards each record with a pair of the number of its stream and its value: the input of a Connected."""

    reads_time = False
    forwards_each = forwards_last = True

    number: int

    def bind(self, context: ProcessorContext) -> Run:
        forward, number = context.send, self.number

        def run(record: Record) -> None:
            forward((record[0], (number, record[1]), record[2], record[3]))

        return run


@dataclass(kw_only=True, eq=False)
class Connected(Operator):
    """Calls `on_first` with the records of one stream, and `on_second` with those of the other."""

    on_first: Function
    on_second: Function

    def bind(self, context: ProcessorContext) -> Run:
        functions = [_watched(each, context) for each in (self.on_first, self.on_second)]

        def run(record: Record) -> None:
            number, value = record[1]
            functions[number](as_record((record[0], value, record[2], record[3])))

        return run


@dataclass(kw_only=True, eq=False)
class ConnectedWithTimers(Connected):
    """A Connected that calls `timer_function` with the key of a timer, and the time that it was set for."""

    timer_function: Callable[[Any, int, ProcessorContext], Any]

    def on_timer(self, key: Any, at: int) -> Any:
        return self.timer_function(key, at, self.context)  # the engine refuses a record that it returns


def _watched(function: Function, context: ProcessorContext) -> Callable[[Record], Any]:
    return watched(lambda record: function(record, context))


@dataclass(eq=False, repr=False)
class ConnectedStep(UserStep):
    """Writes a Connected. `keys` are the serdes of both streams' keys, which must be the same."""

    keys: tuple[KnownSerde, KnownSerde] = field(kw_only=True)

    def write(self, writer: Writer) -> None:
        check_same_keys("connect", *self.keys, writer.settings, sides=("the first stream", "the second stream"))
        super().write(writer)
