"""Recorder: the logical graph that the verbs of one program make, and its way into a Topology."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from penstock import Program, Settings, Topology, TopologyError

from .names import Names
from .serdes import Serdes
from .sources import RepartitionNames, RepartitionStep
from .step import Step, Writer

_REPARTITIONS = dict[Step, list[RepartitionStep]]


def copied(root: Step) -> Step:
    """Return a copy of a graph, so that a program can be built again with other settings."""
    copies: dict[int, Step] = {}
    pending, found = [root], []
    while pending:
        step = pending.pop()
        if id(step) not in copies:
            copies[id(step)] = copy.copy(step)
            found.append(step)
            pending.extend(step.children)
    for step in found:
        made = copies[id(step)]
        made.parents = [copies[id(each)] for each in step.parents]
        made.children = [copies[id(each)] for each in step.children]
    return copies[id(root)]


def merge_repartitions(steps: list[Step], names: Names) -> dict[str, str]:
    """Let all that needs a repartitioning after one change of keys share one topic, right behind that change.

    `steps` are all of a graph in order; it is changed in place. Return the names of sources that are gone, each with
    that of the source that took its place. Semantics: Kafka Streams' `topology.optimization`, merging of repartition
    topics: nothing is merged past a step that changes values, because the topic would carry other values.
    """
    renamed: dict[str, str] = {}
    for changer, repartitions in _by_changer(steps).items():
        if repartitions:
            _share(changer, repartitions, names, renamed)
    return renamed


def _by_changer(steps: list[Step]) -> _REPARTITIONS:
    """Return the repartitions due to each step that changes keys; behind a merge they count as the merge's."""
    found: _REPARTITIONS = {step: [] for step in steps if step.changes_key}
    for step in steps:
        if isinstance(step, RepartitionStep) and step.may_merge:
            changer = _ancestor(step, lambda each: each.changes_key)
            if changer is not None and changer is _ancestor(step, lambda each: each.changes_key or each.changes_value):
                found[changer].append(step)
    of_merges: dict[Step, list[Step]] = {}
    for merge in (step for step in steps if step.is_merge):
        of_merges[merge] = [
            changer
            for changer, repartitions in found.items()
            if all(_child_above(each, merge) is not None for each in repartitions)
            and _child_above(merge, changer) is not None
        ]
    for merge, changers in of_merges.items():
        found[merge] = [each for changer in changers for each in found[changer]]
    for changer in {each for changers in of_merges.values() for each in changers}:
        del found[changer]
    # Kafka Streams does not look at the other parents of a merge: their records would not be repartitioned at all.
    return {changer: [each for each in steps if _comes_only_from(each, changer)] for changer, steps in found.items()}


def _share(changer: Step, repartitions: list[RepartitionStep], names: Names, renamed: dict[str, str]) -> None:
    known = [each.serdes for each in repartitions]
    serdes = Serdes(
        next((each.key for each in known if each.key is not None), None),
        next((each.value for each in known if each.value is not None), None),
    )
    topic = repartitions[0].names.topic
    # Its nodes are named after the topic, if that is numbered or not: Kafka Streams compares the whole name of the
    # topic with a pattern that is meant for what the topic is named after.
    RepartitionNames.numbered(names, topic)
    shared = RepartitionStep(RepartitionNames.after(topic), serdes)
    shared.priority = changer.priority
    for each in repartitions:
        child = _child_above(each, changer)
        if child is not None:
            shared.add_child(child)
            changer.remove_child(child)
        elif _child_above(each, shared) is None:
            continue  # It is above neither any more, since what lay between was moved: it stays as it is.
        for below in list(each.children):
            for parent in list(each.parents):
                parent.add_child(below)
            each.remove_child(below)
        for parent in list(each.parents):
            parent.remove_child(each)
        renamed[each.name] = shared.name
    changer.add_child(shared)


def _child_above(step: Step, above: Step) -> Step | None:
    """Return `step`, or the step above it, that is a child of `above`."""
    return _ancestor(step, lambda each: above in each.parents)


def _ancestor(step: Step, is_it: Callable[[Step], bool]) -> Step | None:
    """Return `step` or the first step above it that is meant; all that is above a parent comes before the next one."""
    if is_it(step):
        return step
    return next((found for parent in step.parents if (found := _ancestor(parent, is_it)) is not None), None)


def _comes_only_from(step: Step, changer: Step) -> bool:
    """Return whether all records whose key has changed since the last repartitioning reach `step` through `changer`."""
    pending, seen = list(step.parents), {id(changer)}
    while pending:
        parent = pending.pop()
        if id(parent) in seen or (isinstance(parent, RepartitionStep) and parent.messages is None):
            continue
        if parent.changes_key:
            return False
        seen.add(id(parent))
        pending.extend(parent.parents)
    return True


_log = logging.getLogger("penstock.dsl")


@dataclass(frozen=True)
class Kinds:
    """The classes that verbs return, by what they are; so the files of the verbs need not import each other."""

    stream: Any
    table: Any
    grouped_stream: Any
    grouped_table: Any
    global_table: Any


AnyStep = TypeVar("AnyStep", bound=Step)


class Root(Step):
    """The parent of all sources."""

    def write(self, writer: Writer) -> None:
        """Add nothing."""


class Recorder:
    """The steps of one program, in the order in which its verbs added them. Kafka Streams: InternalStreamsBuilder."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.names = Names()
        self.root = Root("root")
        self.copartitioned: list[frozenset[str]] = []
        self._next = 0
        self._warned = False

    def add(self, step: AnyStep, *parents: Step) -> AnyStep:
        """Add a step, and return it. A source's parent is `root`."""
        for parent in parents or (self.root,):
            parent.add_child(step)
        step.priority, self._next = self._next, self._next + 1
        return step

    def copartition(self, sources: Iterable[str]) -> None:
        """Require equal numbers of partitions for the topics of these sources."""
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
        writer = self._write(settings, step.name)
        return writer.topology, writer.names_of([step.name])[0]

    def _write(self, settings: Settings, tapped: str | None = None) -> Writer:
        """Write all steps. The records of the `tapped` step also go to a sink."""
        writer = Writer(settings)
        root = copied(self.root)
        if settings.optimizes("merge_repartition_topics"):
            writer.renamed |= merge_repartitions(in_order(root), self.names.copied())
        for step in in_order(root):
            if step.name != tapped:
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
