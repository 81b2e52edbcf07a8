"""Topology: the builder of a program. It refuses mistakes as soon as they can be seen."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..clock import Duration
from ..errors import TopologyError
from ..operator import Operator, Run
from ..processor import Processor, ProcessorContext, ValueTransformer
from ..record import Record
from ..sink import AnySink
from ..store import StoreBuilder
from ..store.kinds.timers import TimerStoreSpec
from ..support.names import did_you_mean, timer_store_name
from .assembly import assemble
from .checks import (
    check_chosen_topic,
    check_name,
    check_partitioner,
    check_partitions,
    check_serdes,
    check_supplier,
    check_topic,
    unlogged_store,
)
from .draft import Draft
from .drawn import Drawn
from .external_sink import external_sink_node, sink_of, staging_store
from .extractors import TimestampExtractor
from .in_flight import pending_store_of
from .messages import OF_TOPOLOGY, Advice
from .nodes import (
    GlobalStore,
    InternalTopic,
    KeyPart,
    Partitioner,
    ProcessorNode,
    ReadOnlyStore,
    SinkNode,
    SourceNode,
    TopicChooser,
)
from .program import Program
from .provided import provided_stores, stores_saved_with
from .serdes import SerdeLike
from .wrapping import WrappingProcessor

_ELSEWHERE = {
    "add_state_store": "add_store(STORE, PROCESSOR), or add_processor(..., stores=[STORE])",
    "connect_processor_and_state_stores": "connect(PROCESSOR, STORE)",
    **{each: f"StreamsBuilder().{each}(...)" for each in ("stream", "table", "global_table")},
}


Supplier = Callable[..., Processor | ValueTransformer]
"""Makes a new processor at each call; called with the options given to `add_processor`."""


class Topology(Drawn):
    """A program under construction: sources, processors, stores and sinks by name, and their edges.

    A parent is added before its children, so a topology has no cycles by construction. Every method returns the
    topology. Each mistake raises TopologyError with the node and the fix, at the call that makes it or, if later calls
    could still correct it, in `build`. A plugin that is named and not installed raises PluginError. Semantics: Kafka
    Streams' Topology.

    >>> class Count(Processor):
    ...     def process(self, record):
    ...         counts = self.context.get_store("counts")
    ...         counts.put(record.key, count := (counts.get(record.key) or 0) + 1)
    ...         self.context.forward(record.with_value(count))
    >>> from penstock import key_value_store
    >>> topology = Topology().add_source("words", "words")
    >>> topology = topology.add_processor("count", Count, "words", stores=[key_value_store("counts")])
    >>> topology = topology.add_sink("out", "counts", "count", value_serde="int")
    >>> print(topology.build().describe().rstrip())
    Topologies:
       Sub-topology: 0
        Source: words (topics: [words])
          --> count
        Processor: count (stores: [counts])
          --> out
          <-- words
        Sink: out (topic: counts)
          <-- count
    """

    def __init__(self, advice: Advice = OF_TOPOLOGY) -> None:
        self._draft = Draft(advice=advice)

    # ---------------------------------------------------------------- nodes

    def add_source(
        self,
        name: str,
        *topics: str,
        pattern: str | re.Pattern[str] | None = None,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: Duration | None = None,
    ) -> Topology:
        """Add a node that reads `topics`, or all topics of the log whose whole name matches `pattern`.

        What is not given is the application's default. `offset_reset` says where a new application starts: "earliest",
        "latest", or how far back in time ("1d": at the first record that is at most a day old). A topic belongs to one
        source: two readers of a topic are two children of its source.
        """
        extractor, reset = timestamp_extractor, offset_reset
        self._draft.add(self._draft.source(name, topics, pattern, key_serde, value_serde, extractor, reset))
        for topic in topics:
            self._draft.readers[topic] = name
        return self

    def add_processor(
        self,
        name: str,
        supplier: Supplier | str,
        parents: str | Sequence[str],
        *,
        stores: Sequence[str | StoreBuilder] = (),
        timers: bool | None = None,
        timer_key_serde: SerdeLike = None,
        **options: Any,
    ) -> Topology:
        """Add a node that runs the processor `supplier` makes: a class, a factory, or the name of an installed one.

        `stores` connects it to stores by name, or declares and connects them, before those that the supplier brings
        (see ConnectedStoreProvider) and in place of one of the same name; global stores need no connection. `options`
        are the arguments of the supplier. Each task calls the supplier anew; a factory is also called twice here, to
        check its results; a class is only inspected. A class that overrides `on_timer` has timers; for what a factory
        makes, say `timers=True`. `timer_key_serde` is for the timers' keys (None: `state_serde`).
        """
        where = f"processor {name!r}"
        check_name("processor", name)
        self._draft.check_new(name)
        parents_given = self._draft.parents(where, name, parents)
        found = check_supplier(where, supplier, options)
        own = [*timer_store(where, name, found, timers, timer_key_serde), *pending_store_of(where, name, found)]
        connected = self._draft.connect(where, stores, own, provided_stores(where, found, options))
        saved_as = stores_saved_with(where, found, options, connected)
        self._draft.add(ProcessorNode(name, supplier, parents_given, connected, options, saved_as, self._draft.advice))
        return self

    def save_as(self, processor: str, *names: str) -> Topology:
        """Choose the name under which the engine saves its own numbers and the schedules of a processor: the first one.

        `STORE` or `STORE/PART` keeps them with a store. What is saved under another of `names`, or under the node's
        own, is taken over. The default is the store that a Processor names (`saved_with`), else the node's name.
        """
        self._draft.save_as(processor, names)
        return self

    def saved_as(self, processor: str) -> tuple[str, ...]:
        """Return these names of a processor that was added; empty: it is saved under the node's own."""
        return self._draft.saved_as(processor)

    def add_sink(
        self,
        name: str,
        topic: str | TopicChooser,
        parents: str | Sequence[str],
        *,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        partitioner: Partitioner | None = None,
        partition_by: KeyPart | None = None,
    ) -> Topology:
        """Add a node that writes to `topic`, or to the topic that the function `topic` names for each record.

        The default partitioner hashes the serialized key, that of a windowed key without its window. `partition_by`, a
        function of the key, returns the part of it that is hashed instead: `lambda key: key.customer`.
        """
        where = f"sink {name!r}"
        parents_given = self._draft.parents(where, name, parents)
        check_chosen_topic(where, topic)
        check_partitioner(where, partitioner, partition_by)
        check_serdes(where, key_serde, value_serde)
        self._draft.add(SinkNode(name, topic, parents_given, key_serde, value_serde, partitioner, partition_by))
        return self

    def add_repartition(
        self,
        name: str,
        parents: str | Sequence[str],
        *,
        partitions: int | None = None,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        partitioner: Partitioner | None = None,
        partition_by: KeyPart | None = None,
    ) -> Topology:
        """Send records through a topic of the application's own, so that each key's records meet in one task.

        Children name `name` as their parent: it is the source that reads the topic `NAME-repartition`. Before it are
        the node `NAME-filter`, which drops records without a key as Kafka Streams does (uncounted), and the sink
        `NAME-sink`. `partitions` of the topic: None takes the largest count among the topics that lead to it.
        """
        check_name("repartition", name)
        topic, where = f"{name}-repartition", f"repartition {name!r}"
        parents_given = self._draft.parents(where, name, parents)
        for node in (f"{name}-filter", f"{name}-sink", name):
            self._draft.check_new(node)
        check_partitioner(where, partitioner, partition_by)
        check_serdes(where, key_serde, value_serde)
        source = self._draft.source(name, (topic,), None, key_serde, value_serde, None, None)
        self.add_internal_topic(topic, partitions)
        self.add_processor(f"{name}-filter", DropNullKeys, parents_given)
        self.add_sink(
            f"{name}-sink",
            topic,
            f"{name}-filter",
            key_serde=key_serde,
            value_serde=value_serde,
            partitioner=partitioner,
            partition_by=partition_by,
        )
        self._draft.add(source)
        self._draft.readers[topic] = name
        return self

    def add_external_sink(
        self,
        name: str,
        sink: AnySink | str,
        parents: str | Sequence[str],
        *,
        partitions: int | None = None,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        partition_by: KeyPart | None = None,
        **options: Any,
    ) -> Topology:
        """Write records to a target outside of the log, each exactly once: `sink`, or the installed one of that name.

        Records go through a topic of the application's own, `NAME-repartition`, in the order of their keys, and tasks
        of a sub-topology of its own write them: a target that is away delays nothing else. Around the topic are the
        sink `NAME-repartition-sink` and the source `NAME-repartition-source`. To write the records of a topic that a
        source reads alone, use `add_direct_sink`. `partitions` None takes the largest count among the topics that lead
        to it. `options` are arguments of an installed sink. The position in the target goes by `name`: keep it.
        """
        where, topic = f"external sink {name!r}", f"{name}-repartition"
        check_name("external sink", name)
        parents_given = self._draft.parents(where, name, parents)
        made = sink_of(where, sink, options)
        for node in (name, f"{topic}-sink", f"{topic}-source"):
            self._draft.check_new(node)
        check_partitioner(where, None, partition_by)
        check_serdes(where, key_serde, value_serde)
        self.add_internal_topic(topic, partitions)
        self.add_sink(
            f"{topic}-sink",
            topic,
            parents_given,
            key_serde=key_serde,
            value_serde=value_serde,
            partition_by=partition_by,
        )
        self.add_source(f"{topic}-source", topic, key_serde=key_serde, value_serde=value_serde)
        return self.add_direct_sink(name, made, f"{topic}-source")

    def add_direct_sink(self, name: str, sink: AnySink | str, source: str, **options: Any) -> Topology:
        """Write the records of a source to a target, as `add_external_sink` does, without a topic between.

        The source reads one topic, by its name. Other nodes behind it are in the same task, and wait with it where the
        target is away.
        """
        where = f"external sink {name!r}"
        check_name("external sink", name)
        self._draft.check_new(name)
        made = sink_of(where, sink, options)
        parents_given = self._draft.parents(where, name, source)
        node = self._draft.nodes[parents_given[0]]
        if len(parents_given) > 1 or not isinstance(node, SourceNode) or len(node.topics) != 1:
            raise TopologyError(
                f"{where}: its records must be those of one topic, in the order of their offsets, and its parent is "
                f"{', '.join(parents_given)}: name a source that reads one topic by its name, or write "
                f"add_external_sink({name!r}, ...), which puts a topic between"
            )
        store = staging_store(name, made)
        stores = () if store is None else self._draft.connect(where, [store], (), ())
        self._draft.add(external_sink_node(name, made, node.name, stores, self._draft.advice))
        return self

    # ---------------------------------------------------------------- stores

    def add_store(self, builder: StoreBuilder, *processors: str) -> Topology:
        """Declare a store and connect it to `processors`. All processors of a store end up in one sub-topology."""
        self._draft.check_declared(builder)
        for processor in processors:
            self.connect(processor, builder.name)
        self._draft.stores[builder.name] = builder
        return self

    def connect(self, processor: str, *stores: str) -> Topology:
        """Connect a processor to stores by name."""
        self._draft.connect_processor(processor, stores)
        return self

    def add_global_store(
        self,
        builder: StoreBuilder,
        source: str,
        topic: str,
        processor: str,
        supplier: Supplier | str,
        /,
        *,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        timestamp_extractor: TimestampExtractor | None = None,
        **options: Any,
    ) -> Topology:
        """Declare a store that every task can read: all partitions of `topic`, put there by one processor.

        `source` and `processor` name its two nodes, which have no other parents and children. The topic is its
        changelog, so `builder.logged` is ignored. `options` are the supplier's arguments.
        """
        where = f"global store {getattr(builder, 'name', builder)!r}"
        node = self._draft.source(source, (topic,), None, key_serde, value_serde, timestamp_extractor, None)
        filler = self._draft.add_filled(where, builder, node, processor, supplier, options)
        self._draft.global_stores[builder.name] = GlobalStore(-1, builder, node, filler)
        return self

    def add_read_only_store(
        self,
        builder: StoreBuilder,
        source: str,
        topic: str,
        processor: str,
        supplier: Supplier | str,
        /,
        *,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        timestamp_extractor: TimestampExtractor | None = None,
        **options: Any,
    ) -> Topology:
        """Declare a store that one processor fills from `topic`; processors that are connected to it only read it.

        Each task has the content of its own partition. `source` names a new source, or one that reads `topic` alone.
        The topic is the store's changelog: where this host does not have its content, the processor gets the topic's
        records again, up to the last commit, and what it forwards then goes nowhere. So the topic must keep them
        (compacted, or without a retention), and the processor's puts must follow from them alone. Semantics: KIP-813.
        """
        where = f"read-only store {getattr(builder, 'name', builder)!r}"
        node = self._draft.reader(where, source, topic, key_serde, value_serde, timestamp_extractor)
        filler = self._draft.add_filled(where, builder, node, processor, supplier, options)
        unlogged = unlogged_store(where, builder)
        self._draft.stores[builder.name] = unlogged
        self._draft.read_only_stores[builder.name] = ReadOnlyStore(unlogged, node, filler)
        return self

    # ---------------------------------------------------------------- topics

    def add_internal_topic(self, name: str, partitions: int | None = None) -> Topology:
        """Declare a topic of the application's own, which sinks and sources then name.

        In the log it carries the application's id. Low level: programs normally use `add_repartition`. `partitions`
        None takes the largest count among the topics that lead to it.
        """
        check_topic("internal topic", name)
        check_partitions(f"internal topic {name!r}", partitions)
        if name in self._draft.internal_topics:
            raise TopologyError(f"internal topic {name!r} is already in the topology; choose another name")
        self._draft.internal_topics[name] = InternalTopic(name, partitions)
        return self

    def copartition(self, *sources: str) -> Topology:
        """Require that the topics of these sources have equal numbers of partitions (a join of them needs it).

        Sources whose records reach the same store need not be named. `Program.resolve` checks it.
        """
        self._draft.copartition(sources)
        return self

    def build(self) -> Program:
        """Return the program as inert data; the topology can be added to and built again.

        Raises TopologyError for mistakes that only the complete topology shows.
        """
        return assemble(self._draft)

    _program_to_draw = build

    # ---------------------------------------------------------------- an unknown verb says what to write

    if not TYPE_CHECKING:  # A type checker knows the verbs.

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{self._hint(name)}")

    def _hint(self, name: str) -> str:
        if name.startswith("_"):
            return ""
        verb = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        verbs = [each for each in dir(type(self)) if not each.startswith("_")]
        if verb in verbs:
            return f": here it is called {verb}(...)"
        if verb in _ELSEWHERE:
            return f": write {_ELSEWHERE[verb]}"
        question = did_you_mean(verb, verbs)
        return f": {question}" if question else ""


class DropNullKeys(Operator):
    """Forwards records that have a key; the others would not meet their like in any partition."""

    forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        send = context.send

        def run(record: Record) -> None:
            if record[0] is not None:
                send(record)

        return run


def timer_store(
    where: str, node: str, supplier: object, timers: bool | None, key_serde: SerdeLike
) -> list[TimerStoreSpec]:
    """Return the declaration of a node's timer store, in a list; an empty list if the node has no timers.

    `timers` decides. With None, the node has timers if its supplier is a class with an `on_timer` of its own. A class
    that wraps another processor does not show that.
    """
    kind: Any = supplier
    while isinstance(kind, functools.partial):
        kind = kind.func
    is_class = isinstance(kind, type)
    has_callback = is_class and issubclass(kind, Processor) and kind.on_timer is not Processor.on_timer
    if timers and is_class and not has_callback:
        what = "is a ValueTransformer" if issubclass(kind, ValueTransformer) else "does not override on_timer"
        raise TopologyError(f"{where}: timers=True, and {kind.__name__} {what}: nothing could be called")
    wraps = is_class and issubclass(kind, WrappingProcessor)
    if timers or (timers is None and has_callback and not wraps):
        return [TimerStoreSpec(timer_store_name(node), key_serde=key_serde)]
    if key_serde is not None:
        raise TopologyError(
            f"{where}: timer_key_serde is given, and the node has no timers: override on_timer in its class, or say "
            "timers=True where a function makes the processor"
        )
    return []
