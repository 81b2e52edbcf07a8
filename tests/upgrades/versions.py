"""Versions of an application as data, and the topologies that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import (
    WALL_CLOCK_TIME,
    Application,
    Processor,
    Record,
    Topology,
    key_value_store,
)
from penstock.store import StoreBuilder

from .counting import add_one


def store(name: str = "counts", **options: Any) -> StoreBuilder:
    """A store that a flow counts in."""
    return key_value_store(name, **options)


@dataclass(frozen=True)
class Flow:
    """Counts the records of topics by key in each of its stores, and sends on the counts; a sub-topology, or two with a
    repartition topic.

    `before` and `after` are processors around the one that counts, which do nothing. `timers` are schedules of `init`
    that count in the first store, every ten seconds each.
    """

    name: str = "orders"
    topics: tuple[str, ...] = ("orders",)
    pattern: str | None = None
    stores: tuple[StoreBuilder, ...] = (store(),)
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    repartition: Mapping[str, Any] | None = None
    counter: str | None = None
    sink: str | None = "out"
    source_name: str | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    timers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A global store that keeps the last value of each key of a topic; `in_front`: added to the topology before the
    flows."""

    store: StoreBuilder
    topic: str = "rates"
    in_front: bool = False


@dataclass(frozen=True)
class Version:
    """A version of the application. `grown` are topics that somebody has given more partitions when it starts."""

    flows: tuple[Flow, ...] = (Flow(),)
    tables: tuple[Table, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    application: str = "app"
    grown: Mapping[str, int] = field(default_factory=dict)

    def topology(self) -> Topology:
        """Build the program."""
        topology = Topology()
        for table in self.tables:
            if table.in_front:
                _fill(topology, table)
        for flow in self.flows:
            _add(topology, flow)
        for table in self.tables:
            if not table.in_front:
                _fill(topology, table)
        return topology

    def run_as(self, directory: Path, **settings: Any) -> Application:
        """Return the application with these settings and its own, which go first; HERE in them is `directory`."""
        own = {
            name: value.replace("HERE", str(directory)) if isinstance(value, str) else value
            for name, value in self.settings.items()
        }
        return Application(self.application, self.topology(), **{**settings, **own})


def _fill(topology: Topology, table: Table) -> None:
    name = table.store.name
    topology.add_global_store(table.store, f"{name}-source", table.topic, f"{name}-fill", Fill)


def _add(topology: Topology, flow: Flow) -> None:
    last = flow.source_name or f"{flow.name}-source"
    topology.add_source(last, *flow.topics, pattern=flow.pattern, **flow.source)
    for each in flow.before:
        topology.add_processor(each, Pass, last)
        last = each
    if flow.repartition is not None:
        options = dict(flow.repartition)
        name = options.pop("name", f"{flow.name}-by-key")
        topology.add_repartition(name, last, **options)
        last = name
    counter = flow.counter or f"{flow.name}-count"
    topology.add_processor(counter, Count, last, stores=flow.stores, kept=flow.stores, ticks=flow.timers)
    last = counter
    for each in flow.after:
        topology.add_processor(each, Pass, last)
        last = each
    if flow.sink is not None:
        topology.add_sink(f"{flow.name}-sink", flow.sink, last)


class Pass(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)


class Count(Processor):
    """Counts each key in every store that it has, and sends on the counts."""

    def __init__(self, kept: tuple[StoreBuilder, ...], ticks: tuple[str, ...]) -> None:
        self.specs = {each.name: each for each in kept}
        self.names, self.ticks = tuple(self.specs), ticks

    def init(self, context: Any) -> None:
        super().init(context)
        for name in self.ticks:
            context.schedule(
                "10s", lambda now, name=name: self.count(self.names[0], f"tick {name}", now), WALL_CLOCK_TIME, name=name
            )

    def process(self, record: Record) -> None:
        counted = [self.count(name, record.key, record.timestamp) for name in self.names]
        self.context.forward(record.with_value(" ".join(map(str, counted))))

    def count(self, name: str, key: Any, now: int) -> int:
        return add_one(self.context.get_store(name), self.specs[name], key, now)


class Fill(Processor):
    def process(self, record: Record) -> None:
        name = self.context.node.removesuffix("-fill")
        self.context.get_store(name).put(record.key, record.value)
