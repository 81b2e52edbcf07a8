"""Writer: what steps are written to, a Topology together with the settings of its application."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from penstock import (
    Duration,
    KeyPart,
    Partitioner,
    ProcessorContext,
    Settings,
    TimestampExtractor,
    Topology,
    TopologyError,
)
from penstock.operator import Operator, Run
from penstock.program.builder import DropNullKeys
from penstock.program.messages import Advice

from .serdes import Serdes, key_of_topic, value_of_internal_topic, value_of_topic


@dataclass(frozen=True)
class RepartitionNames:
    """The names of a repartition topic and of the three nodes around it."""

    topic: str
    sink: str
    filter: str
    source: str


@dataclass(frozen=True)
class Consumed:
    """How a source reads its topics."""

    serdes: Serdes
    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: Duration | None = None


class Writer:
    """A Topology that is being written. `settings` are its application's.

    `renamed` has, for a source that was merged with an earlier one of the same topics, the name of that one.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.topology = Topology(OF_DSL)
        self.renamed: dict[str, str] = {}
        self._numbered: Counter[str] = Counter()
        self._readers: dict[re.Pattern[str] | frozenset[str], tuple[str, Consumed]] = {}

    def names_of(self, parents: Iterable[str]) -> list[str]:
        """Return the names of parents in the topology."""
        return list(dict.fromkeys(self.renamed.get(name, name) for name in parents))

    def numbered(self, name: str) -> str:
        """Return a name, and from its second use on with a number: `NAME`, `NAME/1`."""
        number, self._numbered[name] = self._numbered[name], self._numbered[name] + 1
        return f"{name}/{number}" if number else name

    @property
    def has_record_cache(self) -> bool:
        """Whether the stores of tables have a record cache (`statestore_cache_max_bytes` above 0)."""
        return self.settings.statestore_cache_max_bytes > 0

    def source(self, name: str, topics: tuple[str, ...], pattern: re.Pattern[str] | None, consumed: Consumed) -> None:
        """Add a source; the children of a second one of the same topics become children of the first."""
        read = pattern if pattern is not None else frozenset(topics)
        first = self._readers.setdefault(read, (name, consumed))
        if first[0] == name:
            self.topology.add_source(
                name,
                *topics,
                pattern=pattern,
                key_serde=key_of_topic(consumed.serdes.key, self.settings),
                value_serde=value_of_topic(consumed.serdes.value),
                timestamp_extractor=consumed.timestamp_extractor,
                offset_reset=consumed.offset_reset,
            )
        elif first[1] != consumed:
            shown = pattern.pattern if pattern is not None else ", ".join(topics)
            raise TopologyError(
                f"{shown} is read twice, and with different serdes, extractors or offset_reset (sources {first[0]!r} "
                f"and {name!r}): keep the stream in a variable, and use it for both"
            )
        else:
            self.renamed[name] = first[0]

    def repartition(
        self,
        names: RepartitionNames,
        parents: Iterable[str],
        serdes: Serdes,
        *,
        partitions: int | None = None,
        partitioner: Partitioner | None = None,
        partition_by: KeyPart | None = None,
        drops_null_keys: bool = True,
        keeps_null_keys: bool = False,
    ) -> None:
        """Add a repartition topic: the filter of records without a key, the sink, and the source that reads it.

        With `keeps_null_keys` the filter lets all pass; without `drops_null_keys` there is none.
        """
        above = self.names_of(parents)
        key, value = key_of_topic(serdes.key, self.settings), value_of_internal_topic(serdes.value, self.settings)
        if drops_null_keys:
            self.topology.add_processor(names.filter, PassThrough if keeps_null_keys else DropNullKeys, above)
            above = [names.filter]
        self.topology.add_internal_topic(names.topic, partitions)
        self.topology.add_sink(
            names.sink,
            names.topic,
            above,
            key_serde=key,
            value_serde=value,
            partitioner=partitioner,
            partition_by=partition_by,
        )
        self.topology.add_source(names.source, names.topic, key_serde=key, value_serde=value)


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


class PassThrough(Operator):
    """Forwards each record."""

    forwards_each = forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        return context.send
