"""Wrappers around processors, for the setting `processor_wrapper`: tracing, measuring, faults in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..processor import Processor, ProcessorContext, ValueTransformer, ValueTransformerContext
from ..record import Record
from ..support.callbacks import bound, watched


class WrappingProcessor(Processor):
    """A Processor around another one, `inner`, to which it passes everything on.

    A subclass overrides what it adds to, and calls the same method of `super()`. One that leaves `process` alone costs
    nothing per record. Kafka Streams: WrappedProcessorSupplier (KIP-1112).

    >>> class Tracing(WrappingProcessor):
    ...     def process(self, record):
    ...         print(self.context.node, record.key, record.value)
    ...         super().process(record)
    """

    def __init__(self, inner: Processor) -> None:
        self.inner = inner
        self._run: Callable[[Record], Any] = inner.process

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.inner.init(context)

    def bind(self, context: ProcessorContext) -> Callable[[Record], Any]:
        """Return the function for each record: `process` of a subclass, or the one that the inner processor binds."""
        self._run = watched(bound(self.inner, context))
        return self._run if type(self).process is WrappingProcessor.process else self.process

    def process(self, record: Record) -> None:
        self._run(record)

    def on_timer(self, key: Any, at: int) -> Any:
        inner: Any = self.inner
        return inner.on_timer(key, at)  # which returns nothing; the engine refuses a record that it does return

    def visitor(self, name: str) -> Callable[..., Any]:
        """Return the function of the inner processor's visitor of this name."""
        return visitor_of(self.inner, name)

    def close(self) -> None:
        self.inner.close()


class WrappingTransformer(ValueTransformer):
    """A ValueTransformer around another one, `inner`, to which it passes everything on; see WrappingProcessor."""

    def __init__(self, inner: ValueTransformer) -> None:
        self.inner = inner

    def init(self, context: ValueTransformerContext) -> None:
        super().init(context)
        self.inner.init(context)

    def transform(self, key: Any, value: Any) -> Any:
        return self.inner.transform(key, value)

    def close(self) -> None:
        self.inner.close()


def visitor_of(processor: object, name: str) -> Callable[..., Any]:
    """Return the function of a processor's visitor, as the wrappers around it pass it on."""
    if isinstance(processor, WrappingProcessor):
        return processor.visitor(name)
    method: Callable[..., Any] = getattr(processor, name)
    return method


def innermost(processor: object) -> object:
    """Return the processor inside all wrappers."""
    while isinstance(processor, (WrappingProcessor, WrappingTransformer)):
        processor = processor.inner
    return processor


ProcessorWrapper = Callable[[str, Any], Processor | ValueTransformer]
"""(name of the node, its new Processor or ValueTransformer) -> its replacement, of the same of these two types; or the
processor itself.
"""
