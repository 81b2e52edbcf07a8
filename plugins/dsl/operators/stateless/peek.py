"""Peek, ForEach and Printer: call something for each record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from penstock import ConfigError, ProcessorContext, Record
from penstock.operator import Operator, Run

from ...graph.functions import keyed
from .map import OfFunction


@dataclass(kw_only=True, eq=False)
class Peek(OfFunction):
    """Calls `function` for each record, and forwards it. With `is_last` it forwards nothing."""

    forwards_each = True

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
    """Prints each record to the standard output of the process that runs the task, or appends it to `file`."""

    label: str
    function: Callable[..., str] | None = None
    file: str | None = None
    _opened: TextIO | None = field(default=None, init=False)

    def bind(self, context: ProcessorContext) -> Run:
        label, text = self.label, self.function or (lambda key, value: f"{key}, {value}")
        if self.file is not None:
            try:
                self._opened = Path(self.file).open("a", encoding="utf-8")  # noqa: SIM115 (`close` closes it)
            except OSError as error:
                raise ConfigError(
                    f"node {context.node!r}: print cannot append to the file {self.file!r}: {error.strerror}; name a "
                    "file in a directory that is there, and that the process of the task may write"
                ) from error
        # Without a file it is the standard output of that moment, which tests and notebooks replace.
        opened = self._opened

        def run(record: Record) -> None:
            print(f"[{label}]: {text(record[0], record[1])}", file=opened, flush=True)

        return run

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
