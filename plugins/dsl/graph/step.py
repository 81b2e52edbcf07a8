"""Step: one node of the logical graph. A verb adds one or several; building the program writes them to a Topology."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.processor import Processor, ValueTransformer
from penstock.settings.settings import Settings
from penstock.store import StoreBuilder

from .writer import Writer

Stores = Callable[[Writer], Sequence[str | StoreBuilder]]
"""Returns the stores of a processor once the settings are known: names, or declared stores."""


class Step(ABC):
    """A node of the logical graph. Kafka Streams calls it GraphNode.

    `priority` is its place among all steps: they are written in this order, each after its parents. `changes_key` and
    `changes_value` say what it may do to records; the optimisations depend on it. `takes_null_keys`: it is a join that
    has a result for records without a key (KIP-962), so repartition topics above it do not drop them.
    """

    def __init__(self, name: str, *, changes_key: bool = False, changes_value: bool = False) -> None:
        self.name = name
        self.changes_key = changes_key
        self.changes_value = changes_value
        self.is_merge = False
        self.takes_null_keys = False
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

    `stores` are known when it is written, since a table may get its store only from a later verb. `saved_as`: under
    which names the engine saves what it keeps for the processor, see `Topology.save_as`.
    """

    def __init__(
        self,
        name: str,
        supplier: Callable[..., Processor | ValueTransformer] | str,
        options: Mapping[str, Any] | None = None,
        *,
        stores: Stores | None = None,
        changes_key: bool = False,
        changes_value: bool = False,
    ) -> None:
        super().__init__(name, changes_key=changes_key, changes_value=changes_value)
        self.supplier = supplier
        self.options = dict(options or {})
        self.stores = stores
        self.saved_as: tuple[str, ...] = ()

    def write(self, writer: Writer) -> None:
        self.add_to(writer, self.stores(writer) if self.stores is not None else (), self.options)

    def add_to(self, writer: Writer, stores: Sequence[str | StoreBuilder], options: Mapping[str, Any]) -> None:
        """Add the processor with these stores and options."""
        parents = writer.names_of(self.parent_names())
        writer.topology.add_processor(self.name, self.supplier, parents, stores=stores, **options)
        if self.saved_as:
            writer.topology.save_as(self.name, *self.saved_as)
