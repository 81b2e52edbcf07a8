"""StreamsBuilder: where a DSL program begins."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack, cast

from penstock import (
    Duration,
    KeyValueStoreSpec,
    Processor,
    Program,
    Serde,
    Settings,
    StoreBuilder,
    TimestampExtractor,
    Topology,
    TopologyBuilder,
    TopologyError,
)
from penstock.program.checks import check_builder
from penstock.program.serdes import SerdeLike

from .base import GlobalKTable
from .graph.materialized import materialized
from .graph.names import checked
from .graph.options import StoreLike, TableOptions
from .graph.recorder import Kinds, Recorder
from .graph.serdes import Default, KnownSerde, Serdes
from .graph.sources import Consumed, GlobalStoreStep, SourceStep, StoreStep, TableSourceStep
from .graph.step import Flow
from .grouped import KGroupedStream, KGroupedTable
from .missing_verbs import Verbs
from .operators.reading import TopicTable
from .operators.table_store import GlobalTableSource, TableUpdates
from .stream import KStream
from .table import KTable

if TYPE_CHECKING:
    # The types of a serde that is named, or the application's, are not known. Python has such defaults from 3.13 on.
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:
    from .base import K, V

KINDS = Kinds(KStream, KTable, KGroupedStream, KGroupedTable, GlobalKTable)


class StreamsBuilder(Verbs, TopologyBuilder):
    """A program made of verbs on streams and tables; an Application takes it in place of a Topology.

    Semantics and names are Kafka Streams'. Nothing runs and nothing is written while verbs are called; `build` makes
    the Topology, once the settings are known.
    """

    kind = "builder"
    __repr__ = TopologyBuilder.__repr__

    def __init__(self) -> None:
        self._recorder = Recorder(KINDS)

    def stream(
        self,
        *topics: str,
        pattern: str | re.Pattern[str] | None = None,
        key_serde: Serde[K] | str | None = None,
        value_serde: Serde[V] | str | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: Duration | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Return the stream of the records of `topics`, or of all topics whose whole name matches `pattern`.

        What is not given is the application's default. `offset_reset` says where a new application starts: "earliest",
        "latest", or how far back in time, such as "1d". Type checkers take the types of keys and values from serdes
        that are objects (`value_serde=StrSerde()`); for those by name, annotate: `words: KStream[str, str] = ...`.
        """
        if bool(topics) == (pattern is not None):
            raise TopologyError("stream: expected names of topics, or pattern=, and not both; write stream(TOPIC)")
        check_topics(topics)
        step = SourceStep(
            self._recorder.names.step("KSTREAM-SOURCE-", name),
            topics,
            None if pattern is None else compiled("stream", pattern),
            Consumed(serdes_of_topic(key_serde, value_serde), timestamp_extractor, offset_reset),
        )
        self._recorder.add(step)
        return KStream(self._recorder, Flow(step, step.consumed.serdes, frozenset({step.name})))

    def table(
        self,
        topic: str,
        store: StoreLike | None = None,
        *,
        key_serde: Serde[K] | str | None = None,
        value_serde: Serde[V] | str | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: Duration | None = None,
        name: str | None = None,
        **options: Unpack[TableOptions],
    ) -> KTable[K, V]:
        """Return the table of the latest value of each key in `topic`; a record without a value deletes its key.

        Records without a key are dropped. The latest is the one that was read last, whatever its timestamp; but with a
        `versioned_store(...)` it is the one with the highest timestamp. `store` is the store's name, or a declared
        store; without it, the table gets a store only if a verb needs one. The other options are as in `stream`.
        """
        if not isinstance(topic, str):
            raise TopologyError(f"table: expected the name of one topic, found {topic!r}; write table(TOPIC)")
        recorder, names = self._recorder, self._recorder.names
        kept = materialized("table", names, store, options, f"{topic}-", TableOptions.__annotations__)
        if not kept.is_named:
            names.generated[kept.name] = f'table({topic!r}, "NAME")'
        consumed = Consumed(serdes_of_topic(key_serde, value_serde), timestamp_extractor, offset_reset)
        source = SourceStep(names.suffixed(name, "-source", "KSTREAM-SOURCE-"), (topic,), None, consumed)
        arguments = {"store": None, "sends_old": False}
        step = TableSourceStep(names.step("KTABLE-SOURCE-", name), TableUpdates, arguments, source=source)
        recorder.add(step, recorder.add(source))
        flow = Flow(step, consumed.serdes, frozenset({source.name}))
        return KTable(recorder, flow, TopicTable(step, kept, flow.serdes), kept.own_name)

    def global_table(
        self,
        topic: str,
        store: StoreLike | None = None,
        *,
        key_serde: Serde[K] | str | None = None,
        value_serde: Serde[V] | str | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        name: str | None = None,
        backend: str | None = None,
    ) -> GlobalKTable[K, V]:
        """Return a table of all partitions of `topic`, which every task has whole, so streams are joined by any key.

        Records without a key are dropped; one without a value deletes its key. The record that is read last counts,
        whatever its timestamp. `store` is the name of its store, or a declared key-value store; `backend` is that of a
        named one. The topic is the store's changelog. Semantics: Kafka Streams' GlobalKTable.
        """
        if not isinstance(topic, str):
            raise TopologyError(f"global_table: expected the name of one topic, found {topic!r}")
        names = self._recorder.names
        options = {} if backend is None else {"backend": backend}
        kept = materialized("global_table", names, store, options, f"{topic}-")
        if not kept.is_named:
            names.generated[kept.name] = f'global_table({topic!r}, "NAME")'
        if kept.is_versioned:
            raise TopologyError("global_table: its store cannot keep versions; table(TOPIC, versioned_store(...)) can")
        consumed = Consumed(serdes_of_topic(key_serde, value_serde), timestamp_extractor)
        serdes = kept.serdes(consumed.serdes)
        self._add_global(
            lambda writer: dataclasses.replace(cast(KeyValueStoreSpec, kept.key_value(writer, serdes)), cached=False),
            topic,
            name,
            GlobalTableSource,
            consumed,
            {"store": kept.name},
        )
        return GlobalKTable(self._recorder, kept.name, serdes)

    # ------------------------------------------------------------------ stores

    def add_state_store(self, store: StoreBuilder) -> StreamsBuilder:
        """Declare a store, for processors that name it (`process(..., stores=[NAME])`)."""
        check_builder(store)
        self._recorder.add(StoreStep(store))
        return self

    def add_global_store(
        self,
        store: StoreBuilder,
        topic: str,
        supplier: Callable[..., Processor] | str,
        /,
        *,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        timestamp_extractor: TimestampExtractor | None = None,
        name: str | None = None,
        **options: Any,
    ) -> StreamsBuilder:
        """Declare a store that every task can read whole: one processor, made with `options`, fills it from `topic`."""
        consumed = Consumed(serdes_of_topic(key_serde, value_serde), timestamp_extractor)
        self._add_global(store, topic, name, supplier, consumed, options)
        return self

    def _add_global(
        self, store: Any, topic: str, name: str | None, supplier: Any, consumed: Consumed, options: dict[str, Any]
    ) -> None:
        names = self._recorder.names
        source = names.suffixed(name, "-source", "KSTREAM-SOURCE-")
        processor = names.step("KTABLE-SOURCE-", name)
        self._recorder.add(GlobalStoreStep(processor, store, source, checked(topic), supplier, consumed, options))

    # ------------------------------------------------------------------ the program

    def build(self, settings: Settings | None = None) -> Topology:
        return self._recorder.build(Settings() if settings is None else settings)

    def _program_to_draw(self) -> Program:
        return self._recorder.program_to_draw()


def serdes_of_topic(key_serde: SerdeLike, value_serde: SerdeLike) -> Serdes:
    """Return the serdes of a topic that is read: those given, else the application's."""
    given: tuple[KnownSerde, KnownSerde] = (key_serde, value_serde)
    return Serdes(*(Default.TOPIC if each is None else each for each in given))


def check_topics(topics: tuple[object, ...]) -> None:
    """Check names of topics. Raises TopologyError, also for a list of them."""
    for topic in topics:
        if isinstance(topic, (list, tuple, set)) and all(isinstance(each, str) for each in topic):
            raise TopologyError(
                f"stream: topics are arguments of their own; write stream({', '.join(map(repr, topic))})"
            )
        if not isinstance(topic, str):
            by_pattern = "; write stream(pattern=...)" if isinstance(topic, re.Pattern) else ""
            raise TopologyError(f"stream: expected the name of a topic, found {topic!r}{by_pattern}")


def compiled(verb: str, pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Return a compiled pattern of topics. Raises TopologyError if it is no regular expression."""
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise TopologyError(f"{verb}: pattern {pattern!r} is no regular expression: {error}") from error
