"""FixedKey: runs a Processor that may not change keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from penstock import ProcessingError, Processor, ProcessorContext, Record, StoreBuilder, WrappingProcessor
from penstock.operator import Run
from penstock.program.provided import provided_stores, saved_with
from penstock.support.callbacks import watched


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
        inner = watched(self.inner.bind(cast(ProcessorContext, checked)))

        def run(record: Record) -> None:
            checked.key = record[0]
            inner(record)

        return run

    def init(self, context: ProcessorContext) -> None:
        self.inner.init(cast(ProcessorContext, self._checked))

    def on_timer(self, key: Any, at: int) -> None:
        """Pass a timer on; for it, the processor may forward the timer's key."""
        self._checked.key = key
        self.inner.on_timer(key, at)


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
        if key != self.key:
            raise ProcessingError(
                f"process_values: the processor forwards key {key!r} for a record with key {self.key!r}; use "
                "process to change keys"
            )
