"""TableTransformValues: replaces the values of a table by a ValueTransformer, which may use stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from penstock import ProcessingError, ProcessorContext, ValueTransformer, ValueTransformerContext
from penstock.operator import Run
from penstock.support.callbacks import check_methods

from .table_values import MappingOperator


class TableTransformValues(MappingOperator):
    """Forwards updates with what the transformer returns, which is also called for deletions.

    Without a store and with `sends_old`, the transformer is called for the value before as well.
    """

    def __init__(
        self,
        transformer: Callable[..., ValueTransformer],
        arguments: Mapping[str, Any],
        *,
        store: str | None = None,
        sends_old: bool = False,
    ) -> None:
        super().__init__(store=store, sends_old=sends_old)
        self._transformer = transformer(**arguments)
        check_methods("transform_values", self._transformer)

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._transformer.init(transformer_context(context))

    def bind(self, context: ProcessorContext) -> Run:
        return self.compile_map(context, self._transformer.transform, of_none=True)

    def close(self) -> None:
        self._transformer.close()


def transformer_context(context: ProcessorContext) -> ValueTransformerContext:
    """Return the context for a ValueTransformer that runs inside another node: one that cannot forward."""
    return cast(ValueTransformerContext, _NoForward(context))


class _NoForward:
    def __init__(self, context: ProcessorContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        if name in ("forward", "send"):
            raise ProcessingError("transform_values: a ValueTransformer returns its value, and cannot forward")
        return getattr(self._context, name)
