"""Peek, ForEach and Printer: call something for each record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run

from ...graph.functions import keyed
from .map import OfFunction


@dataclass(kw_only=True, eq=False)
class Peek(OfFunction):
    """Calls `function` for each record, and forwards it. With `is_last` it forwards nothing."""

    is_last: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        forward, function = context.send, keyed(self.function, with_key=self.with_key)
        if self.is_last:
            return lambda record: function(record[0], record[1])

        def run(record: Record) -> None:
            function(record[0], record[1])
            forward(record)

        return run


@dataclass(kw_only=True, eq=False)
class Printer(Operator):
    """Prints each record to the standard output of the process that runs the task."""

    label: str
    function: Callable[..., str] | None = None

    def bind(self, context: ProcessorContext) -> Run:
        label, text = self.label, self.function or _pair_text

        def run(record: Record) -> None:
            print(f"[{label}]: {text(record[0], record[1])}", flush=True)

        return run


def _pair_text(key: Any, value: Any) -> str:
    return f"{key}, {value}"
