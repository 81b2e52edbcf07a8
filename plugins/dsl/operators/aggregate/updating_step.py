"""UpdatingStep: a processor with a store of its own, which is the source of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.processor import Processor
from penstock.store.specs import StoreSpec

from ...graph.step import ProcessorStep
from ...graph.writer import Writer


class UpdatingStep(ProcessorStep):
    """Writes a processor that gets, beside `options`, the name of its store and whether that keeps headers.

    `declare` returns the store once the settings are known. `window_grace_ms` is the time after the end of its windows
    at which they close, if it has windows, and `windows` says which they are. One that `needs_key_serde` gets that of
    the store, as well.
    """

    def __init__(
        self,
        name: str,
        supplier: Callable[..., Processor],
        options: Mapping[str, Any],
        declare: Callable[[Writer], StoreSpec],
        *,
        window_grace_ms: int | None = None,
        needs_key_serde: bool = False,
    ) -> None:
        super().__init__(name, supplier, options)
        self._declare = declare
        self._needs_key_serde = needs_key_serde
        self.window_grace_ms = window_grace_ms
        self.windows = ""

    def write(self, writer: Writer) -> None:
        store = self._declare(writer)
        keeps = getattr(store, "headers", False)
        options = {**self.options, "store": store.name, **({"keeps_headers": True} if keeps else {})}
        if self._needs_key_serde:
            options["key_serde"] = getattr(store, "key_serde", None) or writer.settings.state_serde
        self.add_to(writer, (store,), options)
