"""AsyncContext: the context of an AsyncProcessor, and the calls of its methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from ..errors import TopologyError
from ..processor import AsyncProcessor, NodeMetrics
from ..program.in_flight import call_options, key_bytes_of
from ..program.nodes import ProcessorNode
from ..program.serdes import resolve_serde
from ..record import Record, as_record
from ..store import StateStore
from ..support.callbacks import check_result
from ..support.names import pending_store_name
from ..support.own_copy import own_copy
from .context import NodeContext, Shared

FORWARDS_IN_REQUEST = (
    "forwards a record in `request`, which may be called more than once for a record: forward in process_result"
)


class AskedStore:
    """A store as an AsyncProcessor has it: `is_asking` returns whether `request` runs, which may not write."""

    def __init__(self, store: StateStore, node: str, is_asking: Callable[[], bool]) -> None:
        self._store, self._node, self._is_asking = store, node, is_asking

    def __getattr__(self, name: str) -> Any:
        store = self._store
        found, half = getattr(store, name), store.reading_half
        # A kind of another package may not say which methods read.
        if not self._is_asking() or half is None or hasattr(half, name) or not callable(found):
            return found
        raise TopologyError(
            f"node {self._node!r} calls {name!r} of store {store.name!r} in `request`, which may be called more than "
            "once for a record: write in process_result"
        )


class AsyncContext(NodeContext):
    """The context of an AsyncProcessor. It refuses effects of `request`, which may be called more than once."""

    def __init__(
        self,
        shared: Shared,
        node: ProcessorNode,
        metrics: NodeMetrics,
        forward: Callable[..., None],
        send: Callable[..., None],
    ) -> None:
        super().__init__(shared, node, metrics, forward, send)
        self._is_asking = False

        def forward_answer(record: Record, to: str | None = None) -> None:
            if self._is_asking:
                self._refuse()
            forward(record, to)

        def send_answer(record: Any, to: str | None = None) -> None:
            if self._is_asking:
                self._refuse()
            send(record, to)

        forward_answer.__qualname__ = send_answer.__qualname__ = "forward"  # its name in Python's own errors
        self.forward, self.send = forward_answer, send_answer

    def get_store(self, name: str) -> Any:
        found = super().get_store(name)
        return AskedStore(found, self.node, lambda: self._is_asking) if name in self._node.stores else found

    def _refuse(self) -> NoReturn:
        raise TopologyError(f"node {self.node!r} {FORWARDS_IN_REQUEST}")

    def in_calls(self, processor: AsyncProcessor) -> Callable[[Any], None]:
        """Return a function that takes records, and asks about each of them beside the task."""
        where, store = f"node {self.node!r}", pending_store_name(self.node)
        if store not in self._node.stores:
            raise TopologyError(
                f"{where} has no store {store!r} for records in flight: add the class {type(processor).__name__}, or "
                "functools.partial of it, and no function that makes one"
            )
        call, each = processor.call, processor
        options = call_options(where, call, each.capacity, each.max_pending, each.timeout, each.order, each.retries)
        serdes = (resolve_serde(serde, "msgpack", where) for serde in (each.key_serde, each.value_serde))

        def ask(record: Record) -> Callable[[], Any]:
            self._is_asking = True
            try:
                return partial(call, own_copy(processor.request(as_record(record))))
            finally:
                self._is_asking = False

        progress, stores = self._shared.progress, self._shared.stores
        has_cache = any(stores[each].record_cache is not None for each in self._node.stores)

        def handle(record: Record, result: Any) -> None:
            if has_cache:
                progress.record = record  # updates are forwarded as of it
            check_result(processor.process_result(as_record(record), result), "process_result")

        return self._shared.in_flight.add(
            self.node, ask, handle, key_bytes_of(*serdes), store, options, self.saved_numbers, has_context=True
        )
