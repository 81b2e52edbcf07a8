"""Step: a node of the logical graph; Writer: the Topology that steps are written to; Flow: the end of a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock import Processor, ProcessorContext, Settings, StoreBuilder, Topology, ValueTransformer
from penstock.operator import Operator, Run
from penstock.program.messages import Advice

from .serdes import Serdes

OF_DSL = Advice(
    first_step="builder.stream(TOPIC) is the first step",
    declare="declare it with builder.add_state_store",
    name_store="name it in process(..., stores=[{store}])",
    connect="connect it: process(..., stores=[{store}])",
    declare_for="If another verb declares it, connect it: process(..., stores=[{store}]); else declare it: "
    "process(..., stores=[key_value_store({store})])",
    repartition="put repartition(NAME) in front of one of them",
    write="to(TOPIC)",
    timers="write process(..., timers=True)",
)


class Writer:
    """A Topology that is being written. `settings` are its application's.

    `renamed` has, for a source that was merged with an earlier one of the same topics, the name of that one.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.topology = Topology(OF_DSL)
        self.renamed: dict[str, str] = {}
        self.readers: dict[Any, Any] = {}
        """The first step that reads the topics, by topics or pattern."""
        self._numbered: Counter[str] = Counter()

    def names_of(self, steps: Iterable[str]) -> list[str]:
        """Return the names of steps in the topology."""
        return list(dict.fromkeys(self.renamed.get(name, name) for name in steps))

    def numbered(self, name: str) -> str:
        """Return a name, and from its second use on with a number: `NAME`, `NAME/1`."""
        number, self._numbered[name] = self._numbered[name], self._numbered[name] + 1
        return f"{name}/{number}" if number else name

    @property
    def has_record_cache(self) -> bool:
        """Whether the stores of tables have a record cache (`statestore_cache_max_bytes` above 0)."""
        return self.settings.statestore_cache_max_bytes > 0


Stores = Callable[[Writer], Sequence[str | StoreBuilder]]
"""Returns the stores of a processor once the settings are known: names, or declared stores."""

Late = Callable[[Writer], Mapping[str, Any]]
"""Returns the options of a processor that follow from the settings. Raises TopologyError for those that do not fit."""


@dataclass(eq=False, repr=False)
class Step(ABC):
    """A node of the logical graph. Kafka Streams calls it GraphNode.

    `priority` is its place among all steps: they are written in this order, each after its parents. `changes_key` and
    `changes_value` say what it may do to records; the optimisations depend on it. `takes_null_keys`: it is a join that
    has a result for records without a key (KIP-962), so repartition topics above it do not drop them. `window_form`
    says in words which windows its keys are of, and `window_grace_ms` how long after their end they close.
    """

    name: str
    changes_key: bool = field(default=False, kw_only=True)
    changes_value: bool = field(default=False, kw_only=True)
    is_merge: bool = field(default=False, init=False)
    takes_null_keys: bool = field(default=False, init=False)
    window_form: str = field(default="", init=False)
    window_grace_ms: int | None = field(default=None, init=False)
    priority: int = field(default=-1, init=False)
    parents: list[Step] = field(default_factory=list, init=False)
    children: list[Step] = field(default_factory=list, init=False)

    @abstractmethod
    def write(self, writer: Writer) -> None:
        """Add this step to the topology that is being written."""

    def optimise(self, settings: Settings) -> None:
        """Replace this step in its graph by one that answers the same with fewer stores, if there is one."""
        return

    def parents_in(self, writer: Writer) -> list[str]:
        """Return the names in the topology of the processors and sources whose records this step gets."""
        return writer.names_of(each.name for each in self.parents)

    def add_child(self, child: Step) -> None:
        """Make `child` a child of this step, if it is none yet."""
        if child not in self.children:
            self.children.append(child)
            child.parents.append(self)

    def remove_child(self, child: Step) -> None:
        """Part this step and its child."""
        self.children.remove(child)
        child.parents.remove(self)


@dataclass(eq=False, repr=False)
class ProcessorStep(Step):
    """Writes one processor. `options` are the arguments of `supplier`; they may be changed until the program is built.

    `stores` and `late`, more options, are asked for when it is written, since a table may get its store only from a
    later verb. `saved_as`: under which names the engine saves what it keeps for the processor, see `Topology.save_as`.
    `keeps_closed_windows`: its store keeps windows that have closed, because a verb reads them by key.
    """

    supplier: Callable[..., Processor | ValueTransformer] | str
    options: dict[str, Any] = field(default_factory=dict)
    stores: Stores | None = field(default=None, kw_only=True)
    late: Late | None = field(default=None, kw_only=True)
    saved_as: tuple[str, ...] = field(default=(), init=False)
    keeps_closed_windows: bool = field(default=False, init=False)

    def write(self, writer: Writer) -> None:
        parents = self.parents_in(writer)
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


class PassThrough(Operator):
    """Forwards each record."""

    forwards_each = forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        return context.send
