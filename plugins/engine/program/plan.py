"""Plan: the effects of a program's start on the state, topics and positions of the last program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from penstock import (
    Application,
    Commit,
    ConfigError,
    IncompatibleStateError,
    Log,
    SinkNode,
    SourceNode,
    TaskId,
    TopicPartition,
    TopologyError,
    check_compatible,
)
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.positions import offset_reset_of
from penstock.plugins.logs.memory import MemoryLog
from penstock.program.layouts import layout_from_data
from penstock.settings.dead_letters import dead_letter_topics
from penstock.store.kept_store import KeptStore
from penstock.task.saved_schedules import left_schedules

from .committed import LostPositionsError
from .from_state import continued_tasks, plan_to_continue
from .preparation import Checked, check, circular_topics
from .saved_program import ProgramNote, moved_location, repartition_topics, saved_subtopologies

_THREADS = 8
KEPT, NEW, PARKED, BACK, FILLED = "kept", "new", "parked", "comes back", "filled"
CREATED, UNUSED, CONTINUES, BEGINS = "created", "unused", "continues", "begins"


@dataclass(frozen=True)
class PlannedStore:
    """A store, or one that the program does not name any more, and what becomes of its content.

    `fate`: "kept"; "new": it starts empty; "parked": the content stays, and no processor uses it; "comes back": it was
    parked, and has missed nothing; "filled": from `topic`. `changes`: adaptations, made in one commit of each task.
    """

    name: str
    subtopology: int
    fate: str
    changes: tuple[str, ...] = ()
    topic: str | None = None


@dataclass(frozen=True)
class PlannedTopic:
    """A topic. `fate`: of internal ones "kept", "created" or "unused"; of inputs "continues", "begins" or "unused".

    `where`: the `offset_reset` of one that begins. `partitions`: their number. `is_intermediate`: an input that only
    the application itself writes, as far as its program says; resets pass it over, and backups have what waits there.
    """

    name: str
    partitions: int
    fate: str
    where: str | None = None
    is_intermediate: bool = False


@dataclass(frozen=True)
class Plan:
    """What a start of `application_id` does.

    `refusal`: why it is refused, and then all else is empty; None if it starts. `is_first`: no program has run under
    this id. `tasks`: their number. `inputs`: topics from outside. `left_schedules`: names of processors whose saved
    schedules no processor takes over; they do not fire. `rollback`: why the program that ran last would be refused
    afterwards; empty if it would not. `rollback_after`: why it would be while records wait in repartition topics.
    Stores in `parked` come back with it only until their tasks have processed a record. `left_to_the_start`: checks
    that only the start itself can make. `circular_topics`: inputs that what reads them writes, and that are not known
    to be intermediate.
    """

    application_id: str
    refusal: str | None = None
    is_first: bool = False
    tasks: int = 0
    stores: tuple[PlannedStore, ...] = ()
    internal_topics: tuple[PlannedTopic, ...] = ()
    inputs: tuple[PlannedTopic, ...] = ()
    left_schedules: tuple[str, ...] = ()
    rollback: tuple[str, ...] = ()
    rollback_after: tuple[str, ...] = ()
    left_to_the_start: tuple[str, ...] = ()
    circular_topics: tuple[str, ...] = ()

    @property
    def parked(self) -> tuple[str, ...]:
        """The stores that the program does not name, and whose content stays."""
        return tuple(store.name for store in self.stores if store.fate == PARKED)

    @property
    def is_reversible(self) -> bool:
        """Whether it starts, uses all that is saved, and the program that ran last can start again afterwards."""
        return self.refusal is None and not self.parked and not self.rollback


def plan(application: Application, log: Log) -> Plan:
    """Return the plan of a start of `application`; see `made_plan`."""
    return made_plan(application, log)[0]


def made_plan(application: Application, log: Log) -> tuple[Plan, ProgramNote]:
    """Return the plan of a start of `application`, and the note of its program, empty if it is refused.

    Nothing is changed, and the application may run meanwhile. A start makes the same checks, by the same code. What it
    checks besides are schemas at a registry, and a changelog that is at another place now.
    """
    try:
        checked, continued = _checked(application, log)
    except (ConfigError, IncompatibleStateError, TopologyError) as error:
        return Plan(application.id, refusal=str(error)), {}
    before, now = checked.before, checked.now
    rollback = _rollback(before, now, now["fingerprint"]["internal_topics"])
    made = Plan(
        application.id,
        is_first=not before,
        tasks=len(checked.assignment.tasks),
        stores=tuple(_stores(before, now)),
        internal_topics=tuple(_internal_topics(checked, log)),
        inputs=tuple(_inputs(checked)),
        left_schedules=tuple(_left_schedules(checked, log)),
        rollback=rollback,
        rollback_after=tuple(each for each in _rollback(before, now, ()) if each not in rollback),
        left_to_the_start=(*continued, *_left_to_the_start(checked, log)),
        circular_topics=circular_topics(checked.application, checked.assignment),
    )
    return made, now


def _checked(application: Application, log: Log) -> tuple[Checked, list[str]]:
    """Return the checked application, and the positions at which the start continues in topics that were made again."""
    try:
        return check(application, log), []
    except LostPositionsError as lost:
        plan = plan_to_continue(application, log, lost)
        return check(application, log, are_positions_known=True), continued_tasks(application, plan)


def _left_to_the_start(checked: Checked, log: Log) -> Iterator[str]:
    moved = moved_location(checked.application, checked.assignment, log, checked.now["identity"])
    if moved is not None:
        yield (
            f"the changelog was in {moved[0]!r} and is in {moved[1]!r} now: the start looks whether the state of each "
            "task is there, and is refused otherwise"
        )


# ---------------------------------------------------------------- stores


def _stores(before: ProgramNote, now: ProgramNote) -> Iterator[PlannedStore]:
    was, parked = _kept(before), before.get("parked", {})
    becomes = _kept(now)
    topics = {
        name: store["topic"]
        for each in now["fingerprint"]["subtopologies"].values()
        for name, store in each["stores"].items()
        if "topic" in store
    }
    for name, (number, kept) in sorted(becomes.items(), key=lambda item: (item[1][0], item[0])):
        old = was.get(name)
        if name in now.get("parked", {}):
            yield PlannedStore(name, number, PARKED)
        elif name in topics:
            yield PlannedStore(name, number, FILLED, topic=topics[name])
        elif old is None or old[1].generation != kept.generation:
            yield PlannedStore(name, number, NEW)
        else:
            yield PlannedStore(name, number, BACK if name in parked else KEPT, tuple(changes_of_store(old[1], kept)))


def _kept(note: ProgramNote) -> Mapping[str, tuple[int, KeptStore]]:
    """Return the stores that tasks keep, parked ones included, with their sub-topology."""
    known = (
        {name for subtopology in saved_subtopologies(note).values() for name in subtopology["stores"]}
        if note
        else set()
    )
    return {
        name: (int(number), kept)
        for number, each in note.get("layouts", {}).items()
        for name, kept in layout_from_data(each["now"]).items()
        if name in known
    }


def changes_of_store(was: KeptStore, now: KeptStore) -> Iterator[str]:
    """Yield the adaptations of a store whose form changes."""
    if was.backend != now.backend:
        how = "filled from the changelog" if was.logged and now.logged else "copied on each host"
        yield f"backend {was.backend} becomes {now.backend}, {how}"
    if was.logged and not now.logged:
        yield "it leaves the changelog: the content stays on this host, and another one starts empty"
    if now.logged and not was.logged:
        yield "its history begins with the content of this host"
    if now.expires and not was.expires:
        yield "its entries can expire"


def _left_schedules(checked: Checked, log: Log) -> list[str]:
    """Return the names under which schedules are saved that no node of their sub-topology takes over."""

    def left_by(item: tuple[TaskId, Sequence[TopicPartition]]) -> set[str]:
        task, partitions = item
        read = [partition for partition in partitions if checked.positions.get(partition) is not None]
        commit = log.last_commit(checked.application.id, str(task), read) if read else None
        if commit is None or not commit.engine_state:
            return set()
        return left_schedules(commit.engine_state, checked.application.program.subtopology(task.subtopology))

    with ThreadPoolExecutor(_THREADS, "plan") as pool:
        return sorted(set[str]().union(*pool.map(left_by, checked.assignment.tasks.items())))


# ---------------------------------------------------------------- topics


def _internal_topics(checked: Checked, log: Log) -> Iterator[PlannedTopic]:
    for topic in checked.topics:
        yield PlannedTopic(topic.name, topic.partitions, CREATED)
    created = {topic.name for topic in checked.topics}
    used, were = _own_topics(checked.application, checked.now), _own_topics(checked.application, checked.before)
    topics = log.topics()
    for name in sorted((used | were) & set(topics) - created):
        yield PlannedTopic(name, topics[name].partitions, KEPT if name in used else UNUSED)


def _own_topics(application: Application, note: ProgramNote) -> set[str]:
    """Return the internal topics of a program by their names in the log, including parked stores'."""
    found, changelog = repartition_topics(application.id, note), application.settings.log_changelog
    if changelog is not None:
        found |= {changelog.topic_of(application.id, name) for name, (_, each) in _kept(note).items() if each.logged}
    return found


def _inputs(checked: Checked) -> Iterator[PlannedTopic]:
    """Yield the topics from outside that tasks read, and the ones that they no longer read."""
    application, before = checked.application, checked.before
    counts, internal = checked.assignment.partitions(), checked.assignment.internal
    intermediate = application.program.intermediate_topics(counts, application.settings.intermediate_topics)
    begun = {each.topic for each, position in checked.positions.items() if position is not None}
    for subtopology in application.program.subtopologies:
        for topic, source in checked.assignment.sources[subtopology.id].items():
            if topic in internal or topic not in counts:
                continue
            node = application.program.nodes[source]
            assert isinstance(node, SourceNode)
            where = None if topic in begun else offset_reset_of(node, application.settings, is_internal=False)
            fate = CONTINUES if where is None else BEGINS
            yield PlannedTopic(topic, counts[topic], fate, where, topic in intermediate)
    if before:
        own = repartition_topics(application.id, before)
        were = {topic for topics in before["reads"].values() for topic in topics}
        for topic in sorted(were - own - {*counts}):
            yield PlannedTopic(topic, before["fingerprint"]["partitions"][topic], UNUSED)


# ---------------------------------------------------------------- the way back


def _rollback(before: ProgramNote, now: ProgramNote, drained: Collection[str]) -> tuple[str, ...]:
    """Return why the last program would be refused after this one. `drained`: internal topics without records."""
    return tuple(check_compatible(_as_saved(now, before), before["fingerprint"], drained)) if before else ()


def _as_saved(now: ProgramNote, before: ProgramNote) -> dict[str, Any]:
    """Return the new program's fingerprint as the old one would find it: stores that it does not name are parked."""
    named = {name for each in before["fingerprint"]["subtopologies"].values() for name in each["stores"]}
    found = saved_subtopologies(now)
    for each in found.values():
        for name in [name for name in each["stores"] if name not in named]:
            each["stores"].pop(name)
            each["parked"] = [*each.get("parked", ()), name]
    return {**now["fingerprint"], "subtopologies": found}


def offline_log(application: Application, before: ProgramNote, partitions: int | None) -> Log:
    """Return a log with the topics that a program names, on which another program has run last (`before`; empty: none).

    Topics that the last program read have the number of partitions that they had; others have `partitions`, or without
    it the largest of these numbers. No record waits in any of them.
    """
    log, program, settings = MemoryLog(), application.program, application.settings
    counts = dict((before["fingerprint"]["partitions"] or {}) if before else {})
    usual = partitions or max(counts.values(), default=1)
    own = repartition_topics(application.id, before)
    for topic, count in counts.items():
        log.create_topic(topic, count, internal=topic in own)
    handlers = (settings.deserialization_handler, settings.processing_handler, settings.production_handler)
    named = [topic for node in program.nodes.values() if isinstance(node, SourceNode) for topic in node.topics]
    named += [
        node.topic for node in program.nodes.values() if isinstance(node, SinkNode) and isinstance(node.topic, str)
    ]
    for topic in dict.fromkeys((*named, *dead_letter_topics(handlers))):
        if topic not in program.internal_topics and topic not in log.topics():
            log.create_topic(topic, usual)
    changelog = settings.log_changelog
    if before:
        for subtopology in saved_subtopologies(before).values():
            for name in [
                name for name, store in subtopology["stores"].items() if store["logged"] and changelog is not None
            ]:
                assert changelog is not None
                log.create_topic(
                    changelog.topic_of(application.id, name),
                    subtopology["tasks"],
                    {"cleanup.policy": "compact"},
                    internal=True,
                )
        notes.PROGRAM.write(application.id, log, before)
        _commit(application.id, log, before)
    return log


def _commit(application_id: str, log: Log, before: ProgramNote) -> None:
    """Commit a position in each partition that the last program read."""
    counts = before["fingerprint"]["partitions"]
    for number, topics in before["reads"].items():
        for partition in range(max((counts[topic] for topic in topics), default=0)):
            read = [TopicPartition(topic, partition) for topic in topics if partition < counts[topic]]
            with closing(log.open_committer(application_id, f"{number}_{partition}", read)) as committer:
                committer.commit(Commit(dict.fromkeys(read, 0), "planned"), [])
