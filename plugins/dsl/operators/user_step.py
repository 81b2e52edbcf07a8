"""UserStep: a processor or transformer of the user's own; FixedKey runs one that may not change keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from penstock import (
    ProcessingError,
    Processor,
    ProcessorContext,
    Record,
    StoreBuilder,
    Windowed,
    WrappingProcessor,
)
from penstock.operator import Run
from penstock.program.provided import provided_stores, saved_with
from penstock.support.callbacks import bound, watched
from penstock.support.names import function_name
from penstock.support.own_copy import IMMUTABLE, own_copy

from ..graph.names import is_same_key
from ..graph.step import ProcessorStep, Writer

_LONGEST = 60
"""Longest name of code under which schedules are saved: a task's engine state is small."""


@dataclass(eq=False, repr=False)
class UserStep(ProcessorStep):
    """Writes a processor that runs `code`, a class, a function or the name of an installed one.

    Without a store (`saved_with`) or a name of its own, its schedules are saved under the name of `code`, numbered: so
    a verb in front, which changes the number in the node's name, does not move them.
    """

    code: Any = field(kw_only=True)
    is_named: bool = field(kw_only=True)

    def write(self, writer: Writer) -> None:
        super().write(writer)
        if not writer.topology.saved_as(self.name):
            # No store has such a name, with a space in it.
            code = self.code if isinstance(self.code, str) else function_name(self.code)
            saved = writer.numbered(f"process {code[-_LONGEST:]}")
            writer.topology.save_as(self.name, *((self.name,) if self.is_named else ()), saved)


class FixedKey(WrappingProcessor):
    """Runs the processor that `transformer` makes of `arguments` (Kafka Streams: FixedKeyProcessor, KIP-820)."""

    def __init__(self, transformer: Callable[..., Processor], arguments: Mapping[str, Any]) -> None:
        super().__init__(transformer(**arguments))

    @classmethod
    def stores(cls, transformer: Callable[..., Processor], arguments: Mapping[str, Any]) -> Iterable[StoreBuilder]:
        return provided_stores("process_values", transformer, arguments)

    @classmethod
    def saved_with(cls, transformer: Callable[..., Processor], arguments: Mapping[str, Any]) -> str | None:
        return saved_with("process_values", transformer, arguments)

    def bind(self, context: ProcessorContext) -> Run:
        """Bind the processor with a `forward` that refuses another key; return the function that gets each record."""
        self._checked = checked = _FixedKeyContext(context)
        inner = watched(bound(self.inner, cast(ProcessorContext, checked)))

        def run(record: Record) -> None:
            key = record[0]
            checked.key = key if type(key) in IMMUTABLE else _as_now(key)
            inner(record)

        return run

    def init(self, context: ProcessorContext) -> None:
        self.inner.init(cast(ProcessorContext, self._checked))

    def on_timer(self, key: Any, at: int) -> None:
        """Pass a timer on; for it, the processor may forward the timer's key."""
        self._checked.key = key
        self.inner.on_timer(key, at)

    def visitor(self, name: str) -> Callable[..., Any]:
        """Pass a visit on; for it, the processor may forward the key of the entry."""
        method = super().visitor(name)

        def visit(key: Any, *rest: Any) -> Any:
            self._checked.key = key.key if isinstance(key, Windowed) else key
            return method(key, *rest)

        return visit


def _as_now(key: Any) -> Any:
    """Return a key that stays as it is when the processor changes its own in place."""
    copied = own_copy(key)
    return copied if is_same_key(copied, key) else key  # one that is equal to itself only


class _FixedKeyContext:
    def __init__(self, context: ProcessorContext) -> None:
        self._context = context
        self.key: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def forward(self, record: Record, to: str | None = None) -> None:
        self._check(record[0])
        self._context.forward(record, to)

    def send(self, record: Any, to: str | None = None) -> None:
        self._check(record[0])
        self._context.send(record, to)

    def _check(self, key: Any) -> None:
        if not is_same_key(key, self.key):
            raise ProcessingError(
                f"process_values: the processor forwards key {key!r} for a record with key {self.key!r}; use "
                "process to change keys"
            )
