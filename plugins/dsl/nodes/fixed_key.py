"""FixedKey: runs a Processor that may not change keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from penstock.context import ProcessorContext
from penstock.errors import ProcessingError
from penstock.processor import Processor
from penstock.record import Record


class FixedKey(Processor):
    """Runs the processor that `transformer` makes of `arguments` (Kafka Streams: FixedKeyProcessor, KIP-820)."""

    def __init__(self, transformer: Callable[..., Processor], arguments: Mapping[str, Any]) -> None:
        self._processor = transformer(**arguments)

    def init(self, context: ProcessorContext) -> None:
        """Pass on the context, with a `forward` that refuses another key."""
        super().init(context)
        self._checked = _FixedKeyContext(context)
        self._processor.init(cast(ProcessorContext, self._checked))

    def process(self, record: Record) -> None:
        """Handle one record."""
        self._checked.key = record.key
        self._processor.process(record)

    def close(self) -> None:
        """Close the processor."""
        self._processor.close()


class _FixedKeyContext:
    def __init__(self, context: ProcessorContext) -> None:
        self._context = context
        self.key: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def forward(self, record: Record, to: str | None = None) -> None:
        if record.key != self.key:
            raise ProcessingError(
                f"process_values: the processor forwards key {record.key!r} for a record with key {self.key!r}; use "
                "process to change keys"
            )
        self._context.forward(record, to)
