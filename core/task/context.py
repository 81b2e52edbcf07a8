"""The contexts that a task hands to its processors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..clock import Duration
from ..errors import StoreError, TopologyError
from ..metrics import NodeMetrics
from ..program.nodes import ProcessorNode
from ..punctuation import Cancellable, PunctuationType, Punctuator
from ..record import RecordMetadata
from ..store import StateStore

if TYPE_CHECKING:
    from .task import Task


class TransformerContext:
    """The context of a ValueTransformer: everything but forwarding."""

    def __init__(self, task: Task, node: ProcessorNode, metrics: NodeMetrics) -> None:
        self._task = task
        self._node = node
        self.application_id = task.application_id
        self.task_id = str(task.id)
        self.node = node.name
        self.metrics = metrics
        self.engine_values: dict[str, int] = task.saved_node_values(node.name)
        """Numbers that the engine's own operators save with every commit, by name."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The application's settings."""
        settings = self._task.settings
        return {each.name: getattr(settings, each.name) for each in fields(settings)}

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Where the current record was read; None in a punctuator and in `init`."""
        return self._task.record_metadata()

    def get_store(self, name: str) -> Any:
        """Return a connected store, or a global one to read."""
        if name in self._node.stores:
            return self._task.stores[name]
        if name in self._task.global_stores:
            return self._task.global_stores[name]
        if name in self._task.stores:
            raise TopologyError(
                f"node {self.node!r} is not connected to store {name!r}; connect it: "
                f"topology.connect({self.node!r}, {name!r}), or add_processor(..., stores=[{name!r}])"
            )
        known = [*self._node.stores, *self._task.global_stores]
        raise TopologyError(
            f"node {self.node!r} asks for store {name!r}, which it is not connected to; connected: {', '.join(known) or 'none'}. "
            f"Declare it with topology.add_store(key_value_store({name!r}), {self.node!r})"
        )

    def current_stream_time_ms(self) -> int:
        """Return the highest timestamp processed by the task."""
        return self._task.stream_time

    def current_system_time_ms(self) -> int:
        """Return the driver's wall clock."""
        return self._task.wall_clock

    def schedule(
        self,
        interval: Duration,
        punctuator: Punctuator,
        clock: PunctuationType,
        *,
        start: int | None = None,
        name: str | None = None,
    ) -> Cancellable:
        """Call `punctuator` each time `interval` has passed."""
        return self._task.schedule(self.node, interval, punctuator, clock, start, name)

    def commit(self) -> None:
        """Ask for a commit after the current record."""
        self._task.commit_requested = self._task.needs_attention = True


class NodeContext(TransformerContext):
    """The context of a Processor. `forward` is the function that the task compiled for this node."""

    def __init__(self, task: Task, node: ProcessorNode, metrics: NodeMetrics, forward: Callable[..., None]) -> None:
        super().__init__(task, node, metrics)
        self.forward = forward


_WRITES = frozenset({"put", "put_if_absent", "put_all", "delete", "remove", "flush", "discard", "close"})


class ReadOnlyView:
    """A store that can be read but not written: what a task sees of a global store."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in _WRITES:
            raise StoreError(f"store {self._store.name!r} is a global store: only its own processor may write it")
        return getattr(self._store, name)
