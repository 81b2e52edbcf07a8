"""Assignment: a program laid over the topics of a log, which gives its tasks their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import TopologyError
from ..record import TopicPartition
from .nodes import Graph, SinkNode, SourceNode, TaskId, decorate, reads


@dataclass(frozen=True)
class Assignment:
    """A program laid over the topics of a log. Topics have the names they have in the log.

    `tasks`: the partitions each task reads, by topic in the order of the sources. `internal`: every internal topic and
    its number of partitions; `missing`: the internal topics to create. `globals`: the partitions of global stores'
    topics. `sources`: for each sub-topology, which source node reads a topic.
    """

    tasks: Mapping[TaskId, tuple[TopicPartition, ...]]
    internal: Mapping[str, int]
    missing: Mapping[str, int]
    globals: tuple[TopicPartition, ...]
    sources: Mapping[int, Mapping[str, str]]

    def partitions(self) -> Mapping[str, int]:
        """Return the number of partitions of each topic that a task reads."""
        counts: dict[str, int] = {}
        for partitions in self.tasks.values():
            for topic, partition in partitions:
                counts[topic] = max(counts.get(topic, 0), partition + 1)
        return counts


class Resolution:
    """One call of `Program.resolve`."""

    def __init__(self, program: Graph, partitions: Mapping[str, int], application_id: str) -> None:
        self.program = program
        self.log = partitions
        self.application_id = application_id
        self.own = {
            decorate(application_id, name, program.internal_topics): each
            for name, each in program.internal_topics.items()
        }
        self.sources: dict[int, dict[str, str]] = {}
        self.topics: dict[str, list[str]] = {}
        for subtopology in program.subtopologies:
            for source in subtopology.sources:
                self.topics[source.name] = self._topics(source)
        self._check_existence()
        self._check_one_reader()
        self.groups = self._copartitioned()
        together = DisjointSets(topic for topics in self.topics.values() for topic in topics)
        for _, topics in self.groups:
            for topic in topics:
                together.unite(topics[0], topic)
        self.together = {topic: members for members in together.members() for topic in members}
        self.counts: dict[str, int] = {}
        for topics in self.topics.values():
            for topic in topics:
                if topic not in self.own:
                    self.counts[topic] = self.log[topic]

    def assignment(self) -> Assignment:
        """Return the result. Raises TopologyError."""
        self._count_internal_topics()
        tasks: dict[TaskId, tuple[TopicPartition, ...]] = {}
        for subtopology in self.program.subtopologies:
            topics = [topic for source in subtopology.sources for topic in self.topics[source.name]]
            for partition in range(max((self.counts[topic] for topic in topics), default=0)):
                read = tuple(TopicPartition(topic, partition) for topic in topics if partition < self.counts[topic])
                tasks[TaskId(subtopology.id, partition)] = read
        return Assignment(
            tasks,
            {topic: self.counts[topic] for topic in self.own},
            {topic: self.counts[topic] for topic in self.own if topic not in self.log},
            tuple(
                TopicPartition(topic, partition)
                for store in self.program.global_stores
                for topic in store.source.topics
                for partition in range(self.log[topic])
            ),
            {
                each.id: {topic: source.name for source in each.sources for topic in self.topics[source.name]}
                for each in self.program.subtopologies
            },
        )

    # ---------------------------------------------------------------- which topics

    def _topics(self, source: SourceNode) -> list[str]:
        """Return the topics of a source by their names in the log."""
        if source.pattern is None:
            return [decorate(self.application_id, topic, self.program.internal_topics) for topic in source.topics]
        return sorted(
            topic
            for topic in self.log
            if topic not in self.own and reads(source, topic, self.application_id, self.program.internal_topics)
        )

    def _check_existence(self) -> None:
        missing = [
            f"{topic!r} (source {node.name!r})"
            for node in self.program.nodes.values()
            if isinstance(node, SourceNode)
            for topic in node.topics
            if topic not in self.program.internal_topics and topic not in self.log
        ]
        if missing:
            several = len(missing) > 1
            raise TopologyError(
                f"the log has no topic{'s' if several else ''} {', '.join(missing)}; create "
                f"{'them' if several else 'it'} (`penstock topics create`) or correct the name"
            )

    def _check_one_reader(self) -> None:
        reader: dict[str, str] = {store.source.topics[0]: store.source.name for store in self.program.global_stores}
        for source, topics in self.topics.items():
            for topic in topics:
                other = reader.setdefault(topic, source)
                if other != source:
                    raise TopologyError(
                        f"topic {topic!r} matches the pattern of source {source!r} and belongs to source {other!r} "
                        "already; a topic belongs to one source: narrow the pattern"
                    )

    # ---------------------------------------------------------------- how many partitions

    def _copartitioned(self) -> list[tuple[str, list[str]]]:
        """Return groups of topics that must have equal counts, each with the reason."""
        return [
            (reason, [topic for source, topics in self.topics.items() if source in sources for topic in topics])
            for reason, sources in self.program.copartitioned_sources()
        ]

    def _count_internal_topics(self) -> None:
        for topic, internal in self.own.items():
            if internal.partitions is not None:
                self.counts[topic] = internal.partitions
        self._take_from_copartitioned()
        self._take_from_upstream()
        for reason, topics in self.groups:
            if len({self.counts[topic] for topic in topics}) > 1:
                counts = ", ".join(f"{topic!r} has {self.counts[topic]}" for topic in topics)
                raise TopologyError(
                    f"topics must have equal numbers of partitions because {reason}, but {counts}; create them alike, "
                    f"or {self.program.advice.repartition}"
                )
        for topic, internal in self.own.items():
            if topic in self.log and self.log[topic] != self.counts[topic]:
                before = self.log[topic]
                raise TopologyError(
                    f"internal topic {topic!r} exists with {before} partitions and the program needs "
                    f"{self.counts[topic]}"
                    + (
                        " (its sources' topics have changed)"
                        if internal.partitions is None
                        else f" (partitions={internal.partitions} is given)"
                    )
                    + "; its records and the state behind it are divided by the old number: "
                    + (
                        # A log can add partitions to a topic, and take none away.
                        f"let its sources read topics with {before} partitions"
                        if internal.partitions is None
                        else f"set partitions={before}"
                    )
                    + ", divide the state by the new number (`penstock reshard`), reset the application "
                    "(`penstock reset`), or start under another application id"
                )

    def _take_from_copartitioned(self) -> None:
        """Give internal topics the counts of the topics they are co-partitioned with, as far as there are any."""
        for topic in self.own:
            known = [self.counts[each] for each in self.together[topic] if each in self.counts]
            if known:
                self.counts.setdefault(topic, known[0])

    def _take_from_upstream(self) -> None:
        """Give the other internal topics the largest count upstream, and co-partitioned ones the largest among theirs.

        Upstream may lead through internal topics in a loop (a sub-topology that reads what it writes), so counts grow
        from 0 until nothing changes.
        """
        open_topics = [topic for topic in self.own if topic not in self.counts]
        self.counts |= dict.fromkeys(open_topics, 0)
        upstream = {topic: self._upstream(topic) for topic in open_topics}
        changed = True
        while changed:
            changed = False
            for topic in open_topics:
                count = max(
                    (self.counts[above] for each in self.together[topic] for above in upstream[each]), default=0
                )
                if count > self.counts[topic]:
                    self.counts[topic] = count
                    changed = True
        unknown = [topic for topic in open_topics if not self.counts[topic]]
        if unknown:
            several = len(unknown) > 1
            raise TopologyError(
                f"internal topic{'s' if several else ''} {', '.join(map(repr, unknown))} take{'' if several else 's'} "
                "the number of partitions from the topics that lead there, and there are none: either they lead there "
                "only in a loop, or a pattern matches no topic yet; create a topic, or give partitions="
            )

    def _upstream(self, topic: str) -> list[str]:
        """Return the topics of all sub-topologies that write to an internal topic."""
        name = self.own[topic].name
        return [
            each
            for subtopology in self.program.subtopologies
            if any(isinstance(node, SinkNode) and node.topic == name for node in subtopology.sinks)
            for source in subtopology.sources
            for each in self.topics[source.name]
        ]


class DisjointSets:
    """Disjoint sets of names (union-find)."""

    def __init__(self, names: Iterable[str]) -> None:
        self._above = {name: name for name in names}

    def find(self, name: str) -> str:
        """Return the representative of the set that `name` is in."""
        while self._above[name] != name:
            self._above[name] = name = self._above[self._above[name]]
        return name

    def unite(self, one: str, other: str) -> None:
        """Make the sets of two names one."""
        self._above[self.find(one)] = self.find(other)

    def members(self) -> list[list[str]]:
        """Return the sets, by their first name and each in the order in which the names were given."""
        sets: dict[str, list[str]] = {}
        for name in self._above:
            sets.setdefault(self.find(name), []).append(name)
        return list(sets.values())
