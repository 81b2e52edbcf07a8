"""Recorder: the logical graph that the verbs of one program make, and its way into a Topology."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from penstock import Program, Settings, Topology, TopologyError

from .names import Names
from .optimising import copied, merge_repartitions
from .step import Step
from .writer import Writer

_log = logging.getLogger("penstock.dsl")


@dataclass(frozen=True)
class Kinds:
    """The classes that verbs return, by what they are; so the files of the verbs need not import each other."""

    stream: Any
    table: Any
    grouped_stream: Any
    grouped_table: Any
    global_table: Any


class Root(Step):
    """The parent of all sources."""

    def __init__(self) -> None:
        super().__init__("root")

    def write(self, writer: Writer) -> None:
        """Add nothing."""


class Recorder:
    """The steps of one program, in the order in which its verbs added them. Kafka Streams: InternalStreamsBuilder."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.names = Names()
        self.root = Root()
        self.copartitioned: list[frozenset[str]] = []
        self._next = 0
        self._warned = False

    def add(self, step: Step, *parents: Step) -> None:
        """Add a step. A source's parent is `root`."""
        for parent in parents or (self.root,):
            parent.add_child(step)
        step.priority, self._next = self._next, self._next + 1

    def copartition(self, sources: Iterable[str]) -> None:
        """Note that the topics of these sources need equal numbers of partitions."""
        self.copartitioned.append(frozenset(sources))

    def build(self, settings: Settings) -> Topology:
        """Return the topology that the steps make."""
        topology = self._write(settings).topology
        self._check_names(topology, settings)
        return topology

    def program_to_draw(self) -> Program:
        """Return the program with default settings; nothing is warned of."""
        return self._write(Settings()).topology.build()

    def tapped(self, settings: Settings, step: Step) -> tuple[Topology, str]:
        """Return the topology, and in it the name of the node whose children get the records of `step`."""
        writer = self._write(settings)
        return writer.topology, writer.names_of([step.name])[0]

    def _write(self, settings: Settings) -> Writer:
        writer = Writer(settings)
        root = copied(self.root)
        if settings.optimizes("merge_repartition_topics"):
            writer.renamed |= merge_repartitions(in_order(root), self.names.copied())
        for step in in_order(root):
            step.optimise(settings)
        for step in in_order(root):
            step.write(writer)
        for sources in self.copartitioned:
            names = writer.names_of(sorted(sources))
            if len(names) > 1:
                writer.topology.copartition(*names)
        return writer

    def _check_names(self, topology: Topology, settings: Settings) -> None:
        """Warn once of numbered names of state, or refuse them (KIP-1111)."""
        program = topology.build()
        numbered = [name for name in self.names.generated if name in program.stores or name in program.internal_topics]
        if not numbered:
            return
        shown = "; ".join(f"{name!r}: {self.names.generated[name]}" for name in numbered)
        text = (
            "stores or internal topics have numbered names, which change when a verb is added before them; then their "
            f"state is lost. To name them: {shown}"
        )
        if settings.explicit_internal_names:
            raise TopologyError(f"explicit_internal_names: {text}")
        if not self._warned:
            self._warned = True
            _log.warning("%s", text)


def in_order(root: Step) -> list[Step]:
    """Return all steps by priority, each after its parents; as Kafka Streams writes them."""
    pending: list[tuple[int, int, Step]] = [(-1, 0, root)]
    heapify(pending)
    written: dict[int, Step] = {}
    number = 0
    while pending:
        _, _, step = heappop(pending)
        if id(step) not in written and all(id(parent) in written for parent in step.parents):
            written[id(step)] = step
        if id(step) in written:
            for child in step.children:
                if id(child) not in written:
                    number += 1
                    heappush(pending, (child.priority, number, child))
    return list(written.values())
