"""Random topologies for property tests, and the reading of a description back into a topology."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from penstock import Processor, Record, RecordMetadata, Topology, key_value_store

from ..rotation import examples

law = settings(max_examples=examples(40))
"""For tests over whole topologies: each one holds many cases, and drawing it is slow."""


class Pass(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)


@st.composite
def topologies(draw: st.DrawFn, *, max_nodes: int = 12, repartitions: bool = True) -> Topology:
    """Sources, processors with stores, sinks, global stores and repartitions, in any order that Topology takes."""
    topology = Topology()
    parents: list[str] = []
    processors: list[str] = []
    kinds = ["source", "processor", "processor", "sink", "global"] + ["repartition"] * repartitions
    for number in range(draw(st.integers(1, max_nodes))):
        # Names whose order is not that of adding.
        name = f"{draw(st.sampled_from('abcxyz'))}{number}"
        kind = draw(st.sampled_from(kinds)) if parents else "source"
        above = draw(st.lists(st.sampled_from(parents), min_size=1, max_size=3, unique=True)) if parents else []
        match kind:
            case "source":
                topics = [f"{name}-t{each}" for each in range(draw(st.integers(1, 3)))]
                topology.add_source(name, *topics)
                parents.append(name)
            case "processor":
                topology.add_processor(name, Pass, above)
                parents.append(name)
                processors.append(name)
            case "sink":
                topology.add_sink(name, f"{draw(st.sampled_from('uvw'))}-out", above)
            case "global":
                topology.add_global_store(key_value_store(f"{name}-gs"), name, f"{name}-g", f"{name}-fill", Pass)
            case "repartition":
                topology.add_repartition(name, above, partitions=draw(st.none() | st.integers(1, 5)))
                parents.append(name)
    for number in range(draw(st.integers(0, 3)) if processors else 0):
        users = draw(st.lists(st.sampled_from(processors), min_size=1, max_size=3, unique=True))
        topology.add_store(key_value_store(f"store{number}"), *users)
    return topology


@dataclass
class Entry:
    """One node of a description."""

    kind: str
    name: str
    what: str
    argument: str
    successors: list[str] = field(default_factory=list)
    predecessors: list[str] = field(default_factory=list)

    def listed(self) -> list[str]:
        """The argument as a list: "[a, b]"."""
        return [each for each in self.argument[1:-1].split(", ") if each]


class ChosenTopic:
    """A topic chooser that prints as what a description says."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __call__(self, record: Record, metadata: RecordMetadata | None) -> str:
        return "out"


def parse(description: str) -> list[tuple[bool, list[Entry]]]:
    """Return the sub-topologies in a description: whether each is a global store's, and its nodes."""
    found: list[tuple[bool, list[Entry]]] = []
    lines = description.split("\n")
    assert lines[0] == "Topologies:"
    for line in lines[1:]:
        if head := re.fullmatch(r"\s+Sub-topology: \d+( for global store \(will not generate tasks\))?", line):
            found.append((bool(head[1]), []))
        elif entry := re.fullmatch(r"    (\w+): (.*) \((topics|stores|topic|extractor class): (.*)\)", line):
            found[-1][1].append(Entry(entry[1], entry[2], entry[3], entry[4]))
        elif edge := re.fullmatch(r"      (-->|<--) (.*)", line):
            names = [] if edge[2] == "none" else edge[2].split(", ")
            setattr(found[-1][1][-1], "successors" if edge[1] == "-->" else "predecessors", names)
        else:
            assert not line.strip(), line
    return found


def rebuild(description: str) -> Topology:
    """Return a topology that has this description."""
    topology = Topology()
    blocks = parse(description)
    ordinary = [entry for is_global, entries in blocks if not is_global for entry in entries]
    read = {topic for entry in ordinary if entry.what == "topics" for topic in entry.listed()}
    written = {entry.argument for entry in ordinary if entry.what == "topic"}
    for topic in sorted(read & written):
        topology.add_internal_topic(topic)
    for is_global, entries in blocks:
        if is_global:
            source, filler = entries
            store = key_value_store(filler.listed()[0])
            topology.add_global_store(store, source.name, source.listed()[0], filler.name, Pass)
            continue
        added: set[str] = set()
        while len(added) < len(entries):
            entry = next(each for each in entries if each.name not in added and added.issuperset(each.predecessors))
            added.add(entry.name)
            _add(topology, entry)
    return topology


def _add(topology: Topology, entry: Entry) -> None:
    match entry.kind:
        case "Source":
            topics: dict[str, Any] = {} if entry.argument.startswith("[") else {"pattern": entry.argument}
            topology.add_source(entry.name, *(() if topics else entry.listed()), **topics)
        case "Processor":
            stores = [key_value_store(name) for name in entry.listed()]
            topology.add_processor(entry.name, Pass, entry.predecessors, stores=stores)
        case "Sink":
            topic = entry.argument if entry.what == "topic" else ChosenTopic(entry.argument)
            topology.add_sink(entry.name, topic, entry.predecessors)
