"""ReshardPlan: the tasks of an application before and after, and the partitions of their rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from penstock import (
    Application,
    Assignment,
    ConfigError,
    IncompatibleStateError,
    Log,
    Partitioner,
    ProcessorNode,
    Serde,
    SinkNode,
    SourceNode,
    StoreSpec,
    Subtopology,
    TopicPartition,
    Windowed,
)
from penstock.plugins.engine.program.check import check_saved
from penstock.plugins.engine.program.cluster import check_cluster
from penstock.plugins.engine.program.preparation import topic_counts
from penstock.plugins.engine.program.saved_program import ProgramNote, gone_stores, read_note
from penstock.plugins.engine.program.stored_id import StoredAs, read_stored, stored_as
from penstock.program.nodes import decorate
from penstock.program.partitioning import partitions_of_key, whole_key
from penstock.program.serdes import resolve_serde
from penstock.stores.kinds.row_keys import row_keys_of
from penstock.support.names import changelog_topic, did_you_mean


@dataclass(frozen=True)
class ReshardPlan:
    """How an application gets `partitions` partitions.

    `id`: the application's own one; `stored`: where its log has it. `before` is the application there, with `tasks` and
    `note`; `program` is that of the new layout, which reads `sources[OLD]` in place of each topic OLD. `grown`: topics
    that have grown since the last run, with the old number. `dropped`: stores that start empty. `partitioners`: by
    topic, if not Kafka's hash of the key.
    """

    id: str
    stored: StoredAs
    before: Application
    tasks: Assignment
    note: ProgramNote
    program: Application
    partitions: int
    sources: Mapping[str, str]
    grown: Mapping[str, int]
    dropped: frozenset[str]
    partitioners: Mapping[str, Partitioner]

    def under(self, application_id: str, log: Log) -> tuple[Application, Assignment]:
        """Return the application of the new layout under the id that the log will have it, and its tasks."""
        application = stored_as(self.program, application_id)
        return application, application.program.resolve(topic_counts(application_id, log), application_id)


def plan_reshard(
    application: Application,
    log: Log,
    partitions: int,
    *,
    sources: Mapping[str, str] | None = None,
    dropped: Collection[str] = (),
    partitioners: Mapping[str, Partitioner] | None = None,
) -> ReshardPlan:
    """Return how an application that has run gets `partitions` partitions; changes nothing.

    `sources`: by source topic, the one read in its place (the program may name either); without it, the topics have
    grown. `partitioners`: by source topic, its writers' partitioner, called with a record that has the key alone.
    Raises ConfigError for arguments that fit no topic, TopologyError for topics that do not fit each other, and
    IncompatibleStateError, naming each store, for what cannot be resharded.
    """
    sources, partitioners = dict(sources or {}), dict(partitioners or {})
    stored = read_stored(application.id, log)
    before = stored_as(application, stored.id)
    note = read_note(stored.id, log)
    if not note:
        raise ConfigError(
            f"application {application.id!r} has not run in the log {application.settings.shown('log')}: there is no "
            "state to reshard"
        )
    check_cluster(before, log)  # the new layout would have positions of the other cluster, and no note of it
    if stored.before:
        raise IncompatibleStateError(
            f"application {application.id!r} was resharded, and its layout before is still kept: accept the present "
            "one first (`penstock reshard MODULE:ATTR --accept`), or go back (--undo)"
        )
    _check_sources(application, sources, stored, log)
    before = with_topics(before, {new: old for old, new in sources.items()})
    program = with_topics(before, sources)
    saved = note["fingerprint"]["partitions"]
    globals_ = {topic for each in before.program.global_stores for topic in each.source.topics}
    counts = topic_counts(stored.id, log)
    tasks = before.program.resolve(
        {topic: saved.get(topic, count) for topic, count in counts.items() if topic in saved or topic in globals_},
        stored.id,
    )
    now, before = check_saved(before, tasks, note, log)
    if _kept(now) != _kept(note):
        raise IncompatibleStateError(
            f"application {application.id!r}: its program or settings are others than when it ran last: reshard with "
            "those, and change them before or after"
        )
    grown = {topic: saved[topic] for topic in saved if topic in counts and counts[topic] > saved[topic]}
    plan = ReshardPlan(
        application.id, stored, before, tasks, note, program, partitions, sources,
        grown, frozenset(dropped), partitioners,
    )  # fmt: skip
    _check_partitions(plan, log)
    _check_named(plan)
    _check_stores(plan, log)
    return plan


def _kept(note: ProgramNote) -> Any:
    """Return the part of a note that a program decides."""
    layouts = {number: each["now"] for number, each in note["layouts"].items()}
    return note["fingerprint"], note["changelog"], note["reads"], layouts


def moves(plan: ReshardPlan, then: Assignment, number: int) -> bool:
    """Return whether keys of a sub-topology get other tasks; else each of its tasks stays as it is.

    Either the number of tasks changes, or only that of a topic that feeds a store: other topics may have more
    partitions, before and after.
    """
    subtopology = plan.before.program.subtopology(number)
    return task_count(plan.tasks, number) != task_count(then, number) or not all(
        stays(plan, subtopology, store, then) for store in _layout(subtopology) if store not in plan.dropped
    )


def stays(plan: ReshardPlan, subtopology: Subtopology, store: str, then: Assignment) -> bool:
    """Return whether each row of a store stays in the task of its number: the topics that feed it are as before."""
    feeding = plan.before.program.sources_of_stores(subtopology).get(store, set())
    counts = topic_counts_of(plan, then, subtopology.id)
    read = plan.tasks.sources[subtopology.id]
    own = [count for topic, count in counts.items() if read[topic] in feeding or not feeding]
    return all(before == after for before, after in own)


def topic_counts_of(plan: ReshardPlan, then: Assignment, number: int) -> Mapping[str, tuple[int, int]]:
    """Return the number of partitions of each topic of a sub-topology, before and in the new layout.

    `then` has the tasks of the new layout, under any id. Topics have the names of the old one.
    """
    before, after, read = plan.tasks.partitions(), then.partitions(), then.sources[number]
    found = {}
    for topic, source in plan.tasks.sources[number].items():
        new = plan.sources.get(topic, topic)
        if new not in read:  # an internal topic has another id in its name, and a source of its own
            new = next((name for name, other in read.items() if other == source), "")
        found[topic] = before.get(topic, 0), after.get(new, 0)
    return found


def task_count(assignment: Assignment, number: int) -> int:
    """Return the number of tasks of a sub-topology."""
    return sum(task.subtopology == number for task in assignment.tasks)


def _check_sources(application: Application, sources: Mapping[str, str], stored: StoredAs, log: Log) -> None:
    named, topics = application.program.topics(), log.topics()
    left = {*stored.left, *stored.sources}
    patterns = [
        node.name for node in application.program.nodes.values() if isinstance(node, SourceNode) and node.pattern
    ]
    for old, new in sources.items():
        if old not in named and new not in named:
            advice = did_you_mean(old, named) or f"it reads: {', '.join(named) or 'none'}"
            raise ConfigError(f"application {application.id!r} has no source topic {old!r}; {advice}")
        for topic in (old, new):
            if topic not in topics:
                raise ConfigError(f"topic {topic!r} does not exist; create it: penstock topics create {topic}")
        for sink in (each for part in application.program.subtopologies for each in part.sinks if each.topic == old):
            raise ConfigError(
                f"application {application.id!r}: sink {sink.name!r} writes to topic {old!r}, which the new layout "
                f"would not read: let it write to {new!r} in the program, and run this again"
            )
        if old == new or (old in named and new in named):
            raise ConfigError(
                f"application {application.id!r} reads {new!r} already: a source topic is replaced by one that the "
                "application does not read"
            )
        read = log.committed(stored.id, [TopicPartition(new, each) for each in range(topics[new].partitions)])
        if new in left or any(position is not None for position in read.values()):
            raise ConfigError(
                f"application {application.id!r} has read topic {new!r} before: it would process its records again; "
                "replace a topic by one that the application has never read"
            )
        for node in patterns:
            pattern = getattr(application.program.nodes[node], "pattern", None)
            if pattern is not None and (pattern.fullmatch(old) or pattern.fullmatch(new)):
                raise ConfigError(f"source {node!r} reads topics by a pattern, so {old!r} cannot be replaced there")


def _check_partitions(plan: ReshardPlan, log: Log) -> None:
    counts = log.topics()
    changing = {**{new: counts[new].partitions for new in plan.sources.values()}}
    changing |= {topic: counts[topic].partitions for topic in plan.grown}
    wrong = [f"topic {topic!r} has {count}" for topic, count in changing.items() if count != plan.partitions]
    if wrong:
        raise ConfigError(
            f"application {plan.id!r} is to have {plan.partitions} partitions, and {', '.join(wrong)}: the topics that "
            "it will read have to have that number before"
        )
    if not changing:
        read = ", ".join(f"{topic} ({count})" for topic, count in sorted(plan.tasks.partitions().items()))
        raise ConfigError(
            f"application {plan.id!r}: its topics have the numbers of partitions that they had when it ran last: "
            f"{read}. Let a source topic grow to {plan.partitions} partitions, or name a new one: --source OLD=NEW"
        )
    plan.under(f"{plan.id}-layout", log)  # topics that are joined have to have the same number


def _check_named(plan: ReshardPlan) -> None:
    stores = {store for each in plan.before.program.subtopologies for store in _layout(each)}
    stores |= {*gone_stores(plan.note)}
    for name in plan.dropped:
        if name not in stores:
            advice = did_you_mean(name, stores) or f"it has: {', '.join(sorted(stores)) or 'none'}"
            raise ConfigError(f"application {plan.id!r} has no store {name!r}; {advice}")
    read = {topic for topics in plan.note["reads"].values() for topic in topics}
    for topic in plan.partitioners:
        if topic not in read:
            advice = did_you_mean(topic, read) or f"it reads: {', '.join(sorted(read))}"
            raise ConfigError(f"application {plan.id!r} has no source topic {topic!r}; {advice}")


def _layout(subtopology: Subtopology) -> Mapping[str, Any]:
    return {} if subtopology.layouts is None else subtopology.layouts.now


def _check_stores(plan: ReshardPlan, log: Log) -> None:
    reasons = list(_refused(plan))
    if reasons:
        raise IncompatibleStateError(
            f"application {plan.id!r} cannot be resharded: {'; '.join(reasons)}. A store named with --drop starts empty"
        )


def _refused(plan: ReshardPlan) -> Iterator[str]:
    for name in gone_stores(plan.note):
        if name not in plan.dropped:
            yield f"store {name!r} is parked, and nothing says what its keys are"
    for subtopology in plan.before.program.subtopologies:
        declared = {each.name: each for each in subtopology.stores}
        filled = {each.store.name: each.source.topics[0] for each in subtopology.read_only_stores}
        for name, kept in _layout(subtopology).items():
            if name in plan.dropped:
                continue
            if name not in declared:
                yield f"store {name!r} is parked, and nothing says what its keys are"
            elif name in filled:
                topic = decorate(plan.before.id, filled[name], plan.before.program.internal_topics)
                if topic in plan.sources or topic in plan.grown:
                    yield (
                        f"store {name!r} is filled from topic {topic!r}, which has its rows by the old number: let it "
                        "have a changelog of its own first"
                    )
            elif not kept.logged:
                yield f"store {name!r} is not in the changelog (logged=False), so its content is on single hosts only"
            elif not isinstance(spec := declared[name], StoreSpec) or row_keys_of(spec, kept.kind) is None:
                yield f"store {name!r} is of kind {kept.kind!r}, which does not say where its rows have their keys"


def new_note(plan: ReshardPlan, application: Application, assignment: Assignment, log: Log) -> ProgramNote:
    """Return the note of the new layout, which keeps its stores as the old one does."""
    fresh, _ = check_saved(application, assignment, {}, log)
    fresh["lives"] = plan.note.get("lives", {})
    for number, each in plan.note["layouts"].items():
        if number in fresh["layouts"]:
            fresh["layouts"][number] = {
                "now": {name: kept for name, kept in each["now"].items() if name in fresh["layouts"][number]["now"]},
                "earlier": {},
            }
    return fresh


def with_topics(application: Application, topics: Mapping[str, str]) -> Application:
    """Return an application whose sources read `topics[NAME]` in place of each topic NAME; others stay."""
    if not topics:
        return application
    program = application.program
    nodes = {
        name: _source(node, topics) if isinstance(node, SourceNode) else node for name, node in program.nodes.items()
    }
    made = copy(application)
    made.program = replace(
        program,
        nodes=nodes,
        subtopologies=tuple(
            replace(
                each,
                nodes=tuple(nodes[node.name] for node in each.nodes),
                read_only_stores=tuple(
                    replace(store, source=_source(store.source, topics)) for store in each.read_only_stores
                ),
            )
            for each in program.subtopologies
        ),
    )
    return made


def _source(node: SourceNode, topics: Mapping[str, str]) -> SourceNode:
    return replace(node, topics=tuple(topics.get(topic, topic) for topic in node.topics))


Route = Callable[[bytes, int], int]
"""(key of a row, number of partitions) -> the partition of its entry."""
_CACHED = 1 << 16


class StoreRoute:
    """Finds the partition of each row of one store.

    It is that of the entry's key, as the source's serde writes it, by the partitioner of the source's topic. Of several
    sources the first one counts that fits every row of the old layout.
    """

    def __init__(self, plan: ReshardPlan, subtopology: Subtopology, store: str, then: Assignment) -> None:
        assert subtopology.layouts is not None
        self._where = f"application {plan.id!r}, store {store!r}"
        spec = next(each for each in subtopology.stores if each.name == store)
        assert isinstance(spec, StoreSpec)
        kind = subtopology.layouts.now[store].kind
        keys = row_keys_of(spec, kind)
        assert keys is not None
        self.keys = keys
        settings = plan.before.settings
        serde = resolve_serde(keys.serde(spec), settings.state_serde, f"store {store!r}", settings.of_plugins)
        self._serde = serde.bind(changelog_topic(plan.before.id, store), is_key=True)
        self._record_key = spec.division.record_key
        self._candidates = candidates_of(plan, subtopology, _sources_of(subtopology, store), then)
        self._refused = ""

    def check(self, task: str, partition: int, rows: Iterable[bytes]) -> None:
        """Leave the candidates that find this partition for all rows of a task of the old layout.

        Raises IncompatibleStateError, naming a key, if none is left.
        """
        for row in rows:
            raw = self._key_in(row)
            if raw is None:
                continue
            for candidate in tuple(self._candidates):
                try:
                    reason = candidate.misfit(self._key(raw), partition)
                except Exception as error:  # a serde of another package may raise anything
                    reason = f"its serde raises {type(error).__name__}: {error}"
                if reason:
                    self._candidates.remove(candidate)
                    self._refused = self._refused or f"task {task}, key {_shown(raw)}: {reason}"
            if not self._candidates:
                break
        if not self._candidates:
            raise IncompatibleStateError(
                f"{self._where} is not divided by key: {self._refused}. If the writers of the topic choose partitions "
                "by a function of their own, name it with --partitioner; --drop lets the store start empty"
            )

    def _key_in(self, row: bytes) -> bytes | None:
        try:
            return self.keys.key_of(row)
        except Exception as error:  # another package may raise anything
            raise IncompatibleStateError(
                f"{self._where}: its kind finds no key in the row {_shown(row)}: {type(error).__name__}: {error}"
            ) from error

    def merged(self, row: bytes, one: bytes, other: bytes) -> bytes:
        """Return the content of a row of the whole store in two tasks together. Raises IncompatibleStateError."""
        if self.keys.merged is not None:
            return self.keys.merged(one, other)
        if one != other:
            raise IncompatibleStateError(
                f"{self._where}: its row {_shown(row)} is of the whole store, and two tasks have different ones; its "
                "kind does not say what they are together (`RowKeys.merged`); --drop lets the store start empty"
            )
        return one

    def _key(self, raw: bytes) -> Any:
        key = self._serde.deserialize(raw)
        return key if self._record_key is None else self._record_key(key)

    def kept(self, tasks: int) -> Callable[[int, bytes], int | None]:
        """Return the function that leaves a row of a partition there; None for the store's own row.

        It raises IncompatibleStateError if the partition is of none of the new tasks.
        """

        def partition_of(partition: int, row: bytes) -> int | None:
            if self._key_in(row) is None:
                return None
            if partition >= tasks:
                raise IncompatibleStateError(
                    f"{self._where}: task {partition} of its sub-topology has rows, and there will be {tasks} tasks; "
                    "--drop lets the store start empty"
                )
            return partition

        return partition_of

    def split(self) -> Callable[[int, bytes], int | None]:
        """Return the function from a partition and a row of it to the new one; None for the store's own row.

        It raises IncompatibleStateError if the partitioner does.
        """
        candidate, known = self._candidates[0], dict[bytes, int]()

        def partition_of(_: int, row: bytes) -> int | None:
            raw = self._key_in(row)
            if raw is None:
                return None
            found = known.get(raw)
            if found is None:
                try:
                    found = candidate.target(self._key(raw))
                except Exception as error:  # as above
                    raise IncompatibleStateError(
                        f"{self._where}, key {_shown(raw)}: {candidate.name} raises {type(error).__name__} for "
                        f"{candidate.then} partitions: {error}"
                    ) from error
                if len(known) >= _CACHED:
                    known.clear()
                known[raw] = found
            return found

        return partition_of


class Candidate:
    """The partitions of keys in the topic of one source, which has `then` partitions in the new layout.

    `of_window`: its records have keys of windows; else the key of a window is that of its records. `outside`: the sink
    of writers from outside.
    """

    def __init__(
        self,
        plan: ReshardPlan,
        subtopology: Subtopology,
        source: SourceNode,
        then: Assignment,
        of_window: bool,
        outside: SinkNode,
    ) -> None:
        self._of_window, self.outside = of_window, outside
        settings, program = plan.before.settings, plan.before.program
        topics = plan.tasks.sources[subtopology.id]
        self.topic = next((topic for topic, name in topics.items() if name == source.name), "")
        # Not the number of tasks: another topic of the sub-topology may have more partitions.
        self._before, self.then = topic_counts_of(plan, then, subtopology.id).get(self.topic, (0, 0))
        self.name = f"source {source.name!r} (topic {self.topic!r})"
        self._serde: Serde[Any] = resolve_serde(
            source.key_serde, settings.key_serde, f"source {source.name!r}", settings.of_plugins
        ).bind(self.topic, is_key=True)
        self.is_windowed = self._serde.window_bytes > 0
        given, internal = plan.partitioners.get(self.topic), program.internal_topics
        own = [
            node
            for node in program.nodes.values()
            if isinstance(node, SinkNode) and isinstance(node.topic, str) and node.topic in internal
            if decorate(plan.before.id, node.topic, internal) == self.topic
        ]
        self._sink = own[0] if own and given is None else replace(outside, partitioner=given)

    def misfit(self, key: Any, partition: int) -> str:
        """Return why a key is not in this partition of the old layout, in words; "" if it is."""
        if self._of_window and not isinstance(key, Windowed):
            return "it is of no window"
        try:
            found = self._partition(key, self._before)
        except Exception as error:  # serdes and partitioners of users may raise anything
            return f"{self.name} raises {type(error).__name__}: {error}"
        return "" if found == partition else f"it belongs to partition {found} by {self.name}"

    def target(self, key: Any) -> int:
        """Return the partition of a key in the new layout.

        Raises the errors of serde and partitioner, and ValueError for no partition.
        """
        return self._partition(key, self.then)

    def _partition(self, key: Any, count: int) -> int:
        if isinstance(key, Windowed) and not self._of_window:
            key = key.key
        chosen = partitions_of_key(self._sink, self._serde, self.topic, key, count)
        if len(chosen) != 1 or type(chosen[0]) is not int or not 0 <= chosen[0] < count:
            shown = chosen[0] if len(chosen) == 1 else chosen
            raise ValueError(f"its partitioner chose {shown!r}, expected 0 to {count - 1}")
        return chosen[0]


def candidates_of(
    plan: ReshardPlan, subtopology: Subtopology, sources: Iterable[SourceNode], then: Assignment, *, without: str = ""
) -> list[Candidate]:
    """Return the topics of sources by which keys may be divided, each in every form, but for one topic.

    Writers of windowed keys from outside may choose partitions by the key alone, or by key and window.
    """
    found = [
        Candidate(plan, subtopology, source, then, of_window, SinkNode("", "", (), partition_by=by))
        for source in sources
        for of_window, by in ((False, None), (True, None), (True, whole_key))
    ]
    return [each for each in found if each.topic != without and (each.is_windowed or each.outside.partition_by is None)]


def _sources_of(subtopology: Subtopology, store: str) -> Iterator[SourceNode]:
    """Yield the sources of a sub-topology, first the ones whose records reach a processor with the store."""
    users = {node.name for node in subtopology.nodes if isinstance(node, ProcessorNode) and store in node.stores}
    others = []
    for source in subtopology.sources:
        reached, waiting = set[str](), [source.name]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += subtopology.children.get(name, ())
        if users & reached:
            yield source
        else:
            others.append(source)
    yield from others


def _shown(raw: bytes) -> str:
    return repr(raw[:40])
