"""Preparation: an application's tasks and internal topics, and whether its saved state still fits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock import (
    Application,
    Assignment,
    ConfigError,
    CountsFiles,
    IncompatibleStateError,
    Log,
    LogChangelog,
    RuntimeUnavailableError,
    Serde,
    SerdeError,
    SerdeUnavailableError,
    SinkNode,
    SourceNode,
    StoreBuilder,
    StoreSpec,
    TopicInfo,
    TopicPartition,
    TopologyError,
)
from penstock.hooks import registry
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.epoch import begin_epoch, current_epoch, of_epoch
from penstock.plugins.engine.task.own_topics import topics_beside
from penstock.program.nodes import decorate
from penstock.program.serdes import resolve_serde, serdes_of_topic
from penstock.settings.dead_letters import dead_letter_topics, handlers_of
from penstock.store.specs import declared_serdes
from penstock.support.names import did_you_mean
from penstock.support.packages import check_installed
from penstock.support.system_errors import open_files_advice, open_files_limit
from penstock.support.topic_config import TopicConfig, checked_topic_config
from penstock.support.urls import url_scheme

from .check import check_saved
from .cluster import check_cluster, note_cluster
from .committed import CommittedPartitions, Positions
from .saved_program import ProgramNote, check_location, gone_stores, is_same_program, read_note, saved_subtopologies

_log = logging.getLogger("penstock.applications")


_REPARTITION_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    # Brokers refuse timestamps of an hour ahead by default, and records keep theirs.
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.type": "CreateTime",
}
_FILES_OF_HOST = 24
"""Open files of a task host without a task."""
_FILES_OF_TASK = 1
"""Each task's directory on this host has a lock."""


@dataclass(frozen=True)
class Prepared:
    """An application ready to run.

    `identity` is its incarnation in the log, which ends when its commits are deleted. `gone_stores`: parked stores of
    sub-topologies that the program does not have any more, so that no task keeps them.
    """

    application: Application
    assignment: Assignment
    identity: str
    committed: CommittedPartitions
    gone_stores: tuple[str, ...] = ()

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions that tasks read."""
        return [partition for partitions in self.assignment.tasks.values() for partition in partitions]

    def tasks(self) -> Mapping[str, tuple[TopicPartition, ...]]:
        """Return the tasks' partitions by the task id as text."""
        return {str(task): partitions for task, partitions in self.assignment.tasks.items()}


def resolve(application: Application, log: Log) -> Assignment:
    """Return the tasks of the application. Raises TopologyError for topics that are missing or do not fit."""
    return application.program.resolve(topic_counts(application.id, log), application.id)


def topic_counts(application_id: str, log: Log) -> dict[str, int]:
    """Return the number of partitions of each topic of a log, without the internal topics of other applications."""
    own, beside = f"{application_id}-", topics_beside(application_id)
    return {
        name: info.partitions
        for name, info in log.topics().items()
        if not info.internal or (name.startswith(own) and name not in beside)
    }


@dataclass(frozen=True)
class NewTopic:
    """An internal topic that a start creates."""

    name: str
    partitions: int
    config: Mapping[str, str]


@dataclass(frozen=True)
class Checked:
    """An application that fits its log; nothing is changed yet.

    `before` and `now`: the notes of the last program and of this one. `topics`: the topics that a start creates.
    """

    application: Application
    assignment: Assignment
    committed: CommittedPartitions
    positions: Positions
    before: ProgramNote
    now: ProgramNote
    topics: tuple[NewTopic, ...]
    cluster: str


def check(application: Application, log: Log, *, are_positions_known: bool = False) -> Checked:
    """Check the application against its log, as far as this can be done without changing anything.

    `are_positions_known`: the caller knows how the start continues without lost positions. Raises TopologyError for
    missing topics, MissingPackageError for what stores or changelog need, and IncompatibleStateError when the program
    no longer fits what it saved, or committed positions are gone.
    """
    _check_packages(application)
    cluster = check_cluster(application, log)
    try:
        assignment = _resolve_with_sinks(application, log)
    except TopologyError:
        if not log.settle_seconds:
            raise
        time.sleep(log.settle_seconds)
        assignment = _resolve_with_sinks(application, log)
    _check_intermediate(application, assignment)
    _check_refills(application, log)
    check_restored(application.id, log)
    before = read_note(application.id, log)
    now, application = check_saved(application, assignment, before, log)
    committed = CommittedPartitions(log, application.id, now["identity"])
    positions = committed.positions(assignment) if are_positions_known else committed.check(application, assignment)
    _check_repartition_topics(application, assignment, log)
    topics = (
        *_missing_repartition_topics(application, assignment),
        *_missing_changelog_topics(application, assignment, log, before),
    )
    return Checked(application, assignment, committed, positions, before, now, topics, cluster)


def circular_topics(application: Application, assignment: Assignment) -> tuple[str, ...]:
    """Return the inputs that their own readers write, except the ones that `intermediate_topics` names."""
    named = application.settings.intermediate_topics
    return tuple(sorted(application.program.circular_topics(assignment.partitions(), named)))


def _check_intermediate(application: Application, assignment: Assignment) -> None:
    """Raise ConfigError for a topic that the application does not read: the setting names it in vain."""
    read = assignment.partitions().keys() - assignment.internal.keys()
    for topic in application.settings.intermediate_topics:
        if topic not in read:
            advice = did_you_mean(topic, sorted(read)) or f"it reads: {', '.join(sorted(read))}"
            raise ConfigError(f"setting 'intermediate_topics': {application.id!r} reads no topic {topic!r}; {advice}")


def _check_packages(application: Application) -> None:
    """Raise MissingPackageError if stores, changelog, serdes or settings of plugins need a missing package.

    Without this check, tasks would fail when they are opened, and other parts of a run after topics have been created.
    """
    settings = application.settings
    settings.check_packages()
    check_serdes(application)
    for name in {store.backend or settings.store_backend for store in application.program.all_stores()}:
        registry().load("store backend", name)
    scheme = url_scheme(settings.changelog.partition(":")[2])
    if settings.log_changelog is None and scheme not in ("", "file"):
        check_installed(f"the changelog in {scheme}://...", None, "pyarrow")


def _resolve_with_sinks(application: Application, log: Log) -> Assignment:
    assignment = resolve(application, log)
    _check_sinks(application, log)
    return assignment


def check_restored(application_id: str, log: Log) -> None:
    """Raise IncompatibleStateError for an application that was only partly restored or imported."""
    if begun := notes.RESTORING.read(application_id, log):
        raise IncompatibleStateError(
            f"application {application_id!r} is being restored or filled ({begun}), or that was cut short: "
            "repeat `penstock state restore` or `penstock state import`, which begins again"
        )


def prepare(application: Application, log: Log, check_lease: Callable[[], None] = lambda: None) -> Prepared:
    """Check the application against its log, and create its internal topics. Raises as `check`.

    Also IncompatibleStateError for a changelog at another place that does not have the state, and ConfigError for
    serdes that their registry refuses. `check_lease` raises when the application's lease was lost: a start that was
    frozen must not write the note of its program over that of its successor.
    """
    checked = check(application, log)
    application, identity = checked.application, checked.now["identity"]
    check_location(application, checked.assignment, log, identity)
    prepare_serdes(application)  # it may register schemas, so not for a start that is refused
    _create(checked.topics, log)
    checked.committed.note(checked.positions)
    if checked.cluster:
        check_lease()
        note_cluster(application, log, checked.cluster, notes.CLUSTER.read(application.id, log))
    if checked.now != checked.before:
        check_lease()
        if not is_same_program(checked.now, checked.before):
            begin_epoch(application.id, log)
        notes.PROGRAM.write(application.id, log, checked.now)
    epoch = current_epoch(application.id, log) or begin_epoch(application.id, log)
    assignment = replace(checked.assignment, missing={})
    return Prepared(of_epoch(application, epoch), assignment, identity, checked.committed, gone_stores(checked.now))


def check_program(application: Application, log: Log) -> Prepared:
    """Prepare an application that has run before, without changing anything. Raises as `prepare`."""
    check_cluster(application, log)
    assignment = resolve(application, log)
    note, application = check_saved(application, assignment, read_note(application.id, log), log)
    committed = CommittedPartitions(log, application.id, note["identity"])
    return Prepared(application, assignment, note["identity"], committed, gone_stores(note))


def make_repartition_topics(application: Application, assignment: Assignment, log: Log) -> None:
    """Create the internal topics that are not there. Raises ConfigError for settings that they cannot have."""
    _create(_missing_repartition_topics(application, assignment), log)


def _create(topics: Iterable[NewTopic], log: Log) -> None:
    for topic in topics:
        log.create_topic(topic.name, topic.partitions, topic.config, internal=True)


def _missing_repartition_topics(application: Application, assignment: Assignment) -> list[NewTopic]:
    missing = assignment.missing.items()
    return [NewTopic(topic, partitions, repartition_config(application, topic)) for topic, partitions in missing]


def repartition_config(application: Application, topic: str) -> Mapping[str, str]:
    """Return the settings with which a repartition topic is created."""
    return _merged("setting 'topic_config'", application.settings.topic_config, _REPARTITION_CONFIG, topic)


def _warn_of_other_settings(topic: TopicInfo, wanted: TopicConfig) -> None:
    """Log a warning about settings that came after a topic was created."""
    other = {name: value for name, value in wanted.items() if topic.config.get(name) != value}
    if other:
        _log.warning(
            "topic %r was created with other settings than topic_config says now, and keeps them: set %s with "
            "kafka-configs.sh",
            topic.name,
            ", ".join(f"{name}={value}" for name, value in other.items()),
        )


def changelog_config(
    application: Application, changelog: type[LogChangelog], store: StoreBuilder, topic: str
) -> dict[str, str]:
    """Return the settings with which a store's changelog topic is created."""
    needed = {**changelog.topic_config, **store.traits.topic_config}
    return {
        **_merged("setting 'topic_config'", application.settings.topic_config, needed, topic),
        **_merged(f"topic_config of store {store.name!r}", _own_config(store), needed, topic),
    }


def _own_config(store: StoreBuilder) -> TopicConfig:
    return store.topic_config if isinstance(store, StoreSpec) else {}


def _merged(what: str, given: TopicConfig, needed: Mapping[str, str], topic: str) -> dict[str, str]:
    """Return the settings of an internal topic: the given ones, and the ones that the engine needs.

    Raises ConfigError, which begins with `what`, for a given one that contradicts.
    """
    for name in given.keys() & needed.keys():
        if given[name] != needed[name]:
            raise ConfigError(
                f"{what}: {name!r} is {given[name]!r}, and topic {topic!r} needs {needed[name]!r}: leave it out"
            )
    return {**checked_topic_config(what, given), **needed}


def _check_repartition_topics(application: Application, assignment: Assignment, log: Log) -> None:
    """Raise IncompatibleStateError for a repartition topic that would lose records."""
    topics = log.topics()
    for topic in assignment.internal:
        if topic not in topics:
            continue
        _warn_of_other_settings(topics[topic], application.settings.topic_config)
        if (policy := topics[topic].config.get("cleanup.policy", "delete")) != "delete":
            raise IncompatibleStateError(
                f"internal topic {topic!r} is compacted (cleanup.policy={policy}), so it would lose records that are "
                "not processed yet: set its cleanup.policy to delete"
            )


def make_changelog_topics(application: Application, assignment: Assignment, log: Log) -> None:
    """Create the topics of a changelog in the log. Raises IncompatibleStateError for ones that do not fit."""
    _create(_missing_changelog_topics(application, assignment, log, {}), log)


def _missing_changelog_topics(
    application: Application, assignment: Assignment, log: Log, before: ProgramNote
) -> list[NewTopic]:
    """Check the existing changelog topics, and return the missing ones; `before`: the last start's note."""
    changelog = application.settings.log_changelog
    if changelog is None:
        return []
    missing: list[NewTopic] = []
    topics = log.topics()
    saved = [*saved_subtopologies(before).values()] if before else []
    known = {name for each in saved for name, store in each["stores"].items() if store["logged"]}
    for subtopology in application.program.subtopologies:
        tasks = sum(task.subtopology == subtopology.id for task in assignment.tasks)
        # With parked stores: the tasks read their topics, too.
        for store_name, kept in subtopology.layouts.now.items() if subtopology.layouts is not None else ():
            name = changelog.topic_of(application.id, store_name)
            if kept.logged and store_name in known and name not in topics:
                raise IncompatibleStateError(
                    f"changelog topic {name!r} is gone, and the state of store {store_name!r} with it: was it deleted, "
                    f"or is this another cluster? `penstock stores drop MODULE:ATTR {store_name}` gives up the content "
                    "of that store alone, `penstock reset` starts the application afresh"
                )
        for store in subtopology.stores:
            name = changelog.topic_of(application.id, store.name)
            if not store.logged:
                continue
            if name not in topics:
                missing.append(NewTopic(name, tasks, changelog_config(application, changelog, store, name)))
                continue
            found = topics[name]
            _warn_of_other_settings(found, {**application.settings.topic_config, **_own_config(store)})
            if found.partitions != tasks:
                raise IncompatibleStateError(
                    f"changelog topic {name!r} has {found.partitions} partitions, and sub-topology {subtopology.id}, "
                    f"whose store {store.name!r} it keeps, has {tasks} tasks. A topic's partitions cannot be taken "
                    f"away: let the program read topics with {found.partitions} partitions, or reset the application "
                    "(`penstock reset`)"
                )
            if found.config.get("cleanup.policy", "delete") != "compact":
                raise IncompatibleStateError(
                    f"changelog topic {name!r} is not compacted alone "
                    f"(cleanup.policy={found.config.get('cleanup.policy', 'delete')}), so it "
                    "would lose state as records age: set its cleanup.policy to compact"
                )
    return missing


def _check_refills(application: Application, log: Log) -> None:
    """Raise TopologyError for a topic that a store is restored from, and that loses the last values of keys."""
    topics = log.topics()
    unlimited = "-1" if log.keeps_records else "limited"
    for each in (each for part in application.program.subtopologies for each in part.read_only_stores):
        topic = each.source.topics[0]
        config = topics[topic].config
        policy = config.get("cleanup.policy", "delete")
        keeps_all = config.get("retention.ms", unlimited) == config.get("retention.bytes", "-1") == "-1"
        if policy != "compact" and not keeps_all:
            raise TopologyError(
                f"store {each.store.name!r} is restored from topic {topic!r}, which loses the last values of keys as "
                f"they age (cleanup.policy={policy}): set its cleanup.policy to compact. Or, for a table of the DSL, "
                "leave reuse_ktable_source_topics out of the setting 'topology_optimization': then the store has a "
                "changelog topic of its own"
            )


def _check_sinks(application: Application, log: Log) -> None:
    program, topics = application.program, log.topics()
    missing = [
        f"{node.topic!r} (sink {node.name!r})"
        for node in program.nodes.values()
        if isinstance(node, SinkNode)
        and isinstance(node.topic, str)
        and node.topic not in program.internal_topics
        and node.topic not in topics
    ]
    handlers = handlers_of(application.settings, program).values()
    missing += [f"{topic!r} (dead letters)" for topic in dead_letter_topics(handlers) if topic not in topics]
    if missing:
        several = len(missing) > 1
        raise TopologyError(
            f"the log has no topic{'s' if several else ''} {', '.join(missing)}; create {'them' if several else 'it'} "
            "(`penstock topics create`) or correct the name"
        )


def prepare_serdes(application: Application, unused: Collection[tuple[str, str, str]] = ()) -> None:
    """Prepare the serdes of all topics and stores. Raises ConfigError with the node and topic, or the store.

    `unused`: serdes of topics that are not called, as ("source" or "sink", topic, "keys" or "values").
    """
    for where, serde, writes, are_keys_of_store in _serdes(application, unused):
        try:
            if are_keys_of_store:
                serde.check_keys()
            serde.prepare(writes=writes)
        except (ConfigError, SerdeError, SerdeUnavailableError) as error:
            raise ConfigError(f"application {application.id!r}, {where}: {error}") from error


def check_serdes(application: Application) -> None:
    """Make the serdes of all topics and stores. Raises MissingPackageError for what one needs, among others."""
    for _ in _serdes(application):
        pass


def _serdes(
    application: Application, unused: Collection[tuple[str, str, str]] = ()
) -> Iterator[tuple[str, Serde[Any], bool, bool]]:
    """Yield each serde with where it is used, whether values are written with it, and whether as keys of a store.

    Topics of patterns are left out: which they are is known when records come.
    """
    program, settings = application.program, application.settings
    for node in program.nodes.values():
        if isinstance(node, SourceNode):
            kind, topics = "source", node.topics
        elif isinstance(node, SinkNode) and isinstance(node.topic, str):
            kind, topics = "sink", (node.topic,)
        else:
            continue
        what = f"{kind} {node.name!r}"
        for topic in topics:
            name = decorate(application.id, topic, program.internal_topics)
            key, value = serdes_of_topic(node.key_serde, node.value_serde, settings, what, name)
            for part, serde in (("keys", key), ("values", value)):
                if (kind, topic, part) not in unused:
                    yield f"{what}, {part} of topic {name!r}", serde, kind == "sink", False
    for store in program.all_stores():
        for name, given in declared_serdes(store).items():
            serde = resolve_serde(given, settings.state_serde, store.name, settings.of_plugins)
            yield f"store {store.name!r}, {name}", serde, True, name == "key_serde"


def check_open_files(prepared: Prepared, log: Log, hosts: int | None) -> None:
    """Raise RuntimeUnavailableError when the tasks need more open files than the task hosts on this machine may have.

    `hosts`: number of hosts that share the tasks; None: on machines with unknown limits. It counts the least that
    evenly spread tasks need, so a run may still meet the limit.
    """
    limit, _ = open_files_limit()
    tasks = len(prepared.assignment.tasks)
    if hosts is None or limit < 0 or not tasks:
        return
    processes = min(tasks, hosts)
    each = -(-tasks // processes)
    needed = open_files(prepared.application, log, each)
    if needed > limit:
        raise RuntimeUnavailableError(
            f"application {prepared.application.id!r}: {tasks} tasks in {processes} task host(s), up to {each} in "
            f"each, need at least {needed} open files in each: {open_files_advice()}"
        )


def check_open_files_of_process(application: Application, log: Log, tasks: int) -> None:
    """Raise RuntimeUnavailableError when this process may not have as many open files as `tasks` tasks need."""
    limit, _ = open_files_limit()
    needed = open_files(application, log, tasks) if limit >= 0 else 0
    if needed > limit >= 0:
        raise RuntimeUnavailableError(
            f"application {application.id!r}: {tasks} tasks in one task host need at least {needed} open files, and "
            f"none was opened: {open_files_advice()}"
        )


def open_files(application: Application, log: Log, tasks: int) -> int:
    """Return the least number of open files of a task host with `tasks` tasks."""
    # Count for the sub-topology with the fewest stores.
    stores = min(
        sum(
            _of_backend(name)
            for name in {store.backend or application.settings.store_backend for store in subtopology.stores}
        )
        for subtopology in application.program.subtopologies
    )
    return _FILES_OF_HOST + log.open_files(tasks) + tasks * (_FILES_OF_TASK + stores)


def _of_backend(name: str) -> int:
    factory = registry().load("store backend", name)
    return factory.open_files if isinstance(factory, CountsFiles) else 0
