"""Step: a node of the logical graph, which building the program writes to a Topology. Flow: the end of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import Processor, Settings, StoreBuilder, ValueTransformer

from .serdes import Serdes
from .writer import Writer

Stores = Callable[[Writer], Sequence[str | StoreBuilder]]
"""Returns the stores of a processor once the settings are known: names, or declared stores."""

Late = Callable[[Writer], Mapping[str, Any]]
"""Returns the options of a processor that follow from the settings. Raises TopologyError for those that do not fit."""


class Step(ABC):
    """A node of the logical graph. Kafka Streams calls it GraphNode.

    `priority` is its place among all steps: they are written in this order, each after its parents. `changes_key` and
    `changes_value` say what it may do to records; the optimisations depend on it. `takes_null_keys`: it is a join that
    has a result for records without a key (KIP-962), so repartition topics above it do not drop them. `window_form`
    says in words which windows its keys are of, and `window_grace_ms` how long after their end they close.
    """

    is_merge = False
    takes_null_keys = False
    window_form = ""
    window_grace_ms: int | None = None

    def __init__(self, name: str, *, changes_key: bool = False, changes_value: bool = False) -> None:
        self.name = name
        self.changes_key = changes_key
        self.changes_value = changes_value
        self.priority = -1
        self.parents: list[Step] = []
        self.children: list[Step] = []

    @abstractmethod
    def write(self, writer: Writer) -> None:
        """Add this step to the topology that is being written."""

    def optimise(self, settings: Settings) -> None:
        """Replace this step in its graph by one that answers the same with fewer stores, if there is one."""
        return

    def parent_names(self) -> list[str]:
        """Return the names of the processors and sources whose records this step gets."""
        return [each.name for each in self.parents]

    def add_child(self, child: Step) -> None:
        """Make `child` a child of this step, if it is none yet."""
        if child not in self.children:
            self.children.append(child)
            child.parents.append(self)

    def remove_child(self, child: Step) -> None:
        """Part this step and its child."""
        self.children.remove(child)
        child.parents.remove(self)


class ProcessorStep(Step):
    """Writes one processor. `options` are the arguments of `supplier`; they may be changed until the program is built.

    `stores` and `late`, more options, are asked for when it is written, since a table may get its store only from a
    later verb. `saved_as`: under which names the engine saves what it keeps for the processor, see `Topology.save_as`.
    `keeps_closed_windows`: its store keeps windows that have closed, because a verb reads them by key.
    """

    keeps_closed_windows = False

    def __init__(
        self,
        name: str,
        supplier: Callable[..., Processor | ValueTransformer] | str,
        options: Mapping[str, Any] | None = None,
        *,
        stores: Stores | None = None,
        late: Late | None = None,
        changes_key: bool = False,
        changes_value: bool = False,
    ) -> None:
        super().__init__(name, changes_key=changes_key, changes_value=changes_value)
        self.supplier = supplier
        self.options = dict(options or {})
        self.stores = stores
        self.late = late
        self.saved_as: tuple[str, ...] = ()

    def write(self, writer: Writer) -> None:
        parents = writer.names_of(self.parent_names())
        stores = () if self.stores is None else self.stores(writer)
        options = self.options if self.late is None else {**self.options, **self.late(writer)}
        writer.topology.add_processor(self.name, self.supplier, parents, stores=stores, **options)
        if self.saved_as:
            writer.topology.save_as(self.name, *self.saved_as)


@dataclass(frozen=True)
class Flow:
    """Where a stream or table comes from: the step that makes its records, their serdes, and the sources above it.

    `needs_repartition`: a verb may have changed keys, so equal keys may be in different partitions.
    """

    step: Step
    serdes: Serdes
    sources: frozenset[str]
    needs_repartition: bool = False
