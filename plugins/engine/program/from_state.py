"""`penstock reset --from-state`: takes the newest commit that the changelog proves, if committed offsets are gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace

from penstock import (
    Application,
    Assignment,
    ChangelogError,
    Commit,
    ConfigError,
    DeltaChangelog,
    IncompatibleStateError,
    Log,
    SinkNode,
    SystemClock,
    TaskId,
    TopicPartition,
    World,
    version_counter,
)
from penstock.plugins.engine.task.epoch import begin_epoch
from penstock.plugins.engine.task.local_state.task_state import first_version
from penstock.plugins.engine.task.locations import open_deltas
from penstock.plugins.engine.task.refusals import KEEPS_NO_POSITIONS
from penstock.plugins.engine.task.topic_ids import without_ids
from penstock.program.nodes import decorate
from penstock.settings.dead_letters import dead_letter_topics

from .checkpoint_files import delete_checkpoint, shown_checkpoint
from .committed import LostPositionsError
from .lag import start_positions
from .preparation import Prepared, check_program, make_repartition_topics, prepare
from .reset import Destination, Known, Offsets, to_earliest, to_latest
from .saved_program import keeps_state, unreachable

_log = logging.getLogger("penstock.worker")

_MOST_TRIED = 10
"""Number of proven versions of a task that are tried, the newest first."""
_THREADS = 8
_DESTINATIONS: Mapping[str, Destination] = {"earliest": to_earliest, "latest": to_latest}


@dataclass(frozen=True)
class Recovery:
    """How a task goes on whose commit is lost, or a position of it.

    `now`: the positions that are left. `then`: the positions from which it will read. `commit`: the proven commit whose
    state it continues with. Without it the task keeps its own state if it has positions `now`, else it starts with
    empty state. `lost`: partitions without a position. `open`: partitions whose start the user has to give, with the
    reason in `refused` ("" if there are none). `chosen`: partitions whose start the user has given. `outputs`: topics
    in which records may repeat.
    """

    task: TaskId
    now: Offsets
    then: Offsets
    lost: tuple[TopicPartition, ...]
    open: tuple[TopicPartition, ...] = ()
    refused: str = ""
    chosen: tuple[TopicPartition, ...] = ()
    commit: Commit | None = None
    has_stores: bool = False
    outputs: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """The state that the task continues with: a version, "committed", "empty" or "none" (it has no stores)."""
        if not self.has_stores:
            return "none"
        if self.commit is not None:
            return self.commit.version
        return "committed" if self.now else "empty"


@dataclass(frozen=True)
class FromStatePlan:
    """A plan of `penstock reset --from-state`. `kept` counts the tasks that stay as they are."""

    assignment: Assignment
    recoveries: tuple[Recovery, ...]
    kept: int
    ends: Offsets
    checkpoint: str | None

    def check(self, application_id: str) -> None:
        """Raise IncompatibleStateError with each task that cannot continue."""
        refused = [f"task {recovery.task}: {recovery.refused}" for recovery in self.recoveries if recovery.refused]
        if refused:
            raise IncompatibleStateError(
                f"application {application_id!r} cannot go on from its state alone: {'; '.join(refused)}. Nothing was "
                "changed. Add where the lost positions of these tasks start (--to-earliest, --to-latest, --to-time, "
                "--to-offsets); a task that has lost all of them, and whose changelog keeps none that is proven, then "
                "starts with empty state. `penstock reset` without --from-state starts all tasks afresh"
            )


def plan_from_state(
    application: Application, log: Log, destination: Destination | None, topics: Sequence[str] | None = None
) -> FromStatePlan:
    """Return how each task with lost committed positions continues; changes nothing."""
    prepared = check_program(application, log)
    application, assignment = prepared.application, prepared.assignment
    finder = _Finder(application, assignment, log, prepared.committed.lost(assignment))
    with ThreadPoolExecutor(_THREADS, "from-state") as pool:
        recoveries = [each for each in pool.map(finder.recovery, assignment.tasks) if each is not None]
    if destination is not None:
        recoveries = finder.choose(recoveries, destination, topics)
    return FromStatePlan(
        assignment,
        tuple(recoveries),
        len(assignment.tasks) - len(recoveries),
        finder.ends,
        shown_checkpoint(application.settings, application.id),
    )


def go_on(application: Application, log: Log, plan: FromStatePlan, check_lease: Callable[[], None]) -> list[str]:
    """Carry a plan out; return remarks about data that could not be deleted. The caller holds the application's lease.

    Each task is one commit; after a kill, repeat it. A run is refused until all have one. Spark's checkpoint, which may
    have later commits, is deleted first. Raises IncompatibleStateError, and changes nothing, where a changelog does not
    lead to a task's commit.
    """
    plan.check(application.id)
    check_lease()
    begin_epoch(application.id, log)
    _check_kept(application, log, plan)
    remark = delete_checkpoint(application.settings, application.id)
    make_repartition_topics(application, plan.assignment, log)
    for recovery in plan.recoveries:
        check_lease()
        _commit(application, log, plan.assignment.tasks[recovery.task], recovery)
    return [] if remark is None else [remark]


def _check_kept(application: Application, log: Log, plan: FromStatePlan) -> None:
    """Raise IncompatibleStateError for tasks with a commit whose state the changelog does not have.

    Only here, with the lease: a commit can be read by the one that has the task's fence.
    """
    recovered = {recovery.task for recovery in plan.recoveries}
    tasks = [each for each in plan.assignment.tasks if each not in recovered and keeps_state(application, each)]
    if application.settings.log_changelog is not None or not tasks:
        return
    wrong = [
        f"task {task}: the log has its commit (state version {version}), and {reason}"
        for task, version, reason in unreachable(application, plan.assignment, log, tasks)
    ]
    if wrong:
        raise IncompatibleStateError(
            f"application {application.id!r}: the changelog {application.settings.shown('changelog')!r} does not lead "
            f"to what the log has committed: {'; '.join(wrong)}. Nothing was changed. If it was replaced by an older "
            "copy, bring the newer one back. A host whose local state has these versions goes on without it. "
            "`penstock reset` without --from-state starts the application afresh"
        )


def _commit(application: Application, log: Log, partitions: Sequence[TopicPartition], recovery: Recovery) -> None:
    with closing(log.open_lasting_committer(application.id, str(recovery.task), partitions)) as committer:
        commit, own = recovery.commit, committer.committed
        if own is not None:
            if not recovery.now and set(recovery.chosen) != set(recovery.then):
                raise IncompatibleStateError(
                    f"application {application.id!r}, task {recovery.task}: the log has its commit (state version "
                    f"{own.version}) and not its positions: "
                    f"{_names(partition for partition in partitions if partition not in recovery.chosen)} were deleted "
                    "and made again. Say where they start: --topic with --to-earliest, --to-latest, --to-time or "
                    "--to-offsets"
                )
            if commit is None or version_counter(commit.version) < version_counter(own.version):
                commit = own
        if commit is None:
            commit = Commit(recovery.then, first_version(World()))
            if recovery.has_stores:
                with closing(open_deltas(application.settings, application.id, str(recovery.task))) as changelog:
                    changelog.destroy()
                    changelog.append({}, None, commit.version, commit)
        committer.commit(Commit(recovery.then, commit.version, without_ids(commit.engine_state)), [])


@dataclass
class _Finder:
    """Finds lost positions, and the commits that the changelogs prove.

    `lost`: partitions that had a committed position, by task.
    """

    application: Application
    assignment: Assignment
    log: Log
    lost: Mapping[TaskId, Sequence[TopicPartition]]
    positions: Mapping[TopicPartition, int | None] = field(init=False)
    starts: Offsets = field(init=False)
    ends: Offsets = field(init=False)

    def __post_init__(self) -> None:
        read = [partition for partitions in self.assignment.tasks.values() for partition in partitions]
        there = [each for each in read if each.topic not in self.assignment.missing]
        empty = dict.fromkeys(read, 0)
        self.positions = self.log.committed(self.application.id, there)
        self.starts = {**empty, **self.log.start_offsets(there)}
        self.ends = {**empty, **self.log.end_offsets(there)}

    def recovery(self, task: TaskId) -> Recovery | None:
        """Return how a task continues; None for a task that has its commit, and for a task that never had one."""
        partitions, lost = self.assignment.tasks[task], tuple(self.lost.get(task, ()))
        now = {partition: at for partition in partitions if (at := self.positions.get(partition)) is not None}
        if now and not lost:
            return None
        stores = keeps_state(self.application, task)
        proven: Commit | None = None
        reason = "it has no stores, so nothing says how far it was"
        had_commit = bool(lost)
        if stores and self.application.settings.log_changelog is not None:
            reason = f"{KEEPS_NO_POSITIONS}: `penstock reset` without --from-state starts the application afresh"
        elif stores:
            with closing(open_deltas(self.application.settings, self.application.id, str(task))) as changelog:
                proven, reason, is_proof = _newest(changelog, begun=bool(lost))
            had_commit = had_commit or is_proof
        if not had_commit:
            return None
        lost = tuple(partition for partition in partitions if partition in lost) if now else partitions
        found = Recovery(
            task, now, now, lost, has_stores=stores, outputs=_outputs(self.application, self.assignment, task)
        )
        if now and lost:
            reason = (
                f"its positions in {_names(lost)} are gone and others are not: was the topic deleted and made again?"
            )
            return replace(found, open=lost, refused=reason)
        if proven is None:
            return replace(found, open=partitions, refused=reason)
        then = {partition: proven.positions[partition] for partition in partitions if partition in proven.positions}
        wrong = [each for each in self.lost.get(task, ()) if each not in then]
        if wrong:
            reason = f"its changelog keeps no position in {_names(wrong)}"
            return replace(found, open=partitions, refused=reason)
        found = replace(found, commit=proven, then=then)
        outside = tuple(each for each, at in then.items() if not self.starts[each] <= at <= self.ends[each])
        if outside:
            offsets = [
                f"{each} has offsets {self.starts[each]} to {self.ends[each]}, and position {then[each]} is proven"
                for each in outside
            ]
            reason = f"{'; '.join(offsets)}: records were deleted, or the topic was deleted and made again"
            return replace(found, open=outside, refused=reason)
        return found

    def choose(
        self, recoveries: Sequence[Recovery], destination: Destination, topics: Sequence[str] | None
    ) -> list[Recovery]:
        """Return the recoveries with the positions that the user gives."""
        lost = {each for recovery in recoveries for each in recovery.lost}
        for topic in topics or ():
            if topic not in {each.topic for each in lost}:
                raise ConfigError(
                    f"application {self.application.id!r} has lost no position in topic {topic!r}; it has in: "
                    f"{', '.join(sorted({each.topic for each in lost})) or 'none'}"
                )
        movable = {
            each
            for recovery in recoveries
            for each in (recovery.lost if topics else recovery.open)
            if not topics or each.topic in topics
        }
        sources = sorted(each for each in movable if each.topic not in self.assignment.internal)
        fresh = start_positions(self.application, self.assignment, self.log, sources, SystemClock().now_ms())
        proven = {each: at for recovery in recoveries for each, at in recovery.then.items()}
        known = Known(
            self.log,
            {source: proven.get(source, fresh[source]) for source in sources},
            {source: self.starts[source] for source in sources},
            {source: self.ends[source] for source in sources},
            "no position is lost there; lost are those in",
        )
        asked = {
            each: min(max(at, self.starts[each]), self.ends[each])
            for each, at in destination(known).items()
        }  # fmt: skip
        # The records of a repartition topic are not processed yet: start at its first one.
        asked |= {each: self.starts[each] for each in movable - set(sources)}
        return [
            self._chosen(each, {one: asked[one] for one in each.lost if one in movable and one in asked})
            for each in recoveries
        ]

    def _chosen(self, recovery: Recovery, asked: Offsets) -> Recovery:
        keeps_none = recovery.has_stores and self.application.settings.log_changelog is not None
        if not asked or (keeps_none and not recovery.now):
            return recovery
        left = tuple(each for each in recovery.open if each not in asked)
        refused = recovery.refused if left else ""
        return replace(recovery, then={**recovery.then, **asked}, open=left, refused=refused, chosen=tuple(asked))


def _newest(changelog: DeltaChangelog, begun: bool) -> tuple[Commit | None, str, bool]:
    """Return the newest commit that a changelog proves and can restore.

    Else return None and the reason. The third value says whether the changelog proves any commit. `begun`: the task has
    certainly had a commit; then its first version counts, if no later one is proven.
    """
    proven = changelog.proven()
    reason = "its changelog proves no commit"
    candidates = sorted(proven, key=version_counter, reverse=True)
    if not proven and begun:
        candidates = list(changelog.beginnings())
        if len(candidates) > 1:
            return None, "its changelog has several first versions, and proves none of them", False
    for version in candidates[:_MOST_TRIED]:
        commit = changelog.kept(version)
        if commit is None:
            reason = "its changelog keeps no positions"
            continue
        try:
            changelog.restore(version, None)
        except ChangelogError as error:
            reason = str(error)
            continue
        return commit, "", bool(proven)
    return None, reason, bool(proven)


def _outputs(application: Application, assignment: Assignment, task: TaskId) -> tuple[str, ...]:
    """Return the topics that the sinks and handlers of a task produce to."""
    program, settings = application.program, application.settings
    sinks = [node for node in program.subtopology(task.subtopology).nodes if isinstance(node, SinkNode)]
    named = [
        decorate(application.id, sink.topic, program.internal_topics)
        if isinstance(sink.topic, str)
        else f"what sink {sink.name!r} chooses"
        for sink in sinks
    ]
    handlers = (settings.deserialization_handler, settings.processing_handler, settings.production_handler)
    return tuple(dict.fromkeys([*named, *dead_letter_topics(handlers)]))


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))


def prepare_and_continue(application: Application, log: Log, check_lease: Callable[[], None]) -> Prepared:
    """Prepare as `prepare`, also where source topics were made again since the application ran.

    The new start or end of these topics is committed first. Tasks keep their last commit and its state. Raises as
    `plan_to_continue`. The caller holds the application's lease; `check_lease` raises when it was lost.
    """
    try:
        return prepare(application, log, check_lease)
    except LostPositionsError as lost:
        plan = plan_to_continue(application, log, lost)
    for remark in go_on(application, log, plan, check_lease):
        _log.warning("application %r: %s", application.id, remark)
    for line in continued_tasks(application, plan):
        _log.warning("application %r, %s", application.id, line)
    return prepare(application, log, check_lease)


def plan_to_continue(application: Application, log: Log, lost: LostPositionsError) -> FromStatePlan:
    """Return where tasks continue in topics that were made again; changes nothing.

    Raises LostPositionsError: with `offset_out_of_range=fail`, where positions are lost in other topics, and where a
    task would not continue with the state of its last commit. It says whether the setting would help.
    """
    policy = application.settings.offset_out_of_range
    if not all(partition.topic in lost.made_again for partition in lost.partitions):
        raise lost
    plan = plan_from_state(application, log, _DESTINATIONS.get(policy, to_earliest), sorted(lost.made_again))
    obstacle = _obstacle(application, log, plan, lost)
    if policy != "fail" and not obstacle:
        return plan
    advice = (
        f"The setting `offset_out_of_range` does not help here: {obstacle}"
        if obstacle
        else "To go on with what the new topic has, set `offset_out_of_range` to earliest or latest"
    )
    raise LostPositionsError(f"{lost}. {advice}", lost.partitions, lost.made_again) from None


def continued_tasks(application: Application, plan: FromStatePlan) -> list[str]:
    """Return a text for each task that continues in a topic that was made again."""
    return [
        f"task {recovery.task}: topic {', '.join(map(repr, sorted({one.topic for one in recovery.chosen})))} was "
        "deleted and made again: continuing from "
        f"{', '.join(f'{one} offset {recovery.then[one]}' for one in recovery.chosen)} "
        f"(offset_out_of_range={application.settings.offset_out_of_range})"
        for recovery in plan.recoveries
    ]


def _obstacle(application: Application, log: Log, plan: FromStatePlan, lost: LostPositionsError) -> str:
    """Return why the tasks cannot continue with the state of their last commits; empty if they can."""
    if internal := sorted({partition.topic for partition in lost.partitions} & set(plan.assignment.internal)):
        return f"what is missing in {', '.join(internal)} is missing in the state"
    if refused := [f"task {recovery.task}: {recovery.refused}" for recovery in plan.recoveries if recovery.refused]:
        return "; ".join(refused)
    behind = [
        str(recovery.task)
        for recovery in plan.recoveries
        if recovery.has_stores
        and not recovery.now
        and log.last_commit(application.id, str(recovery.task), plan.assignment.tasks[recovery.task]) is None
    ]
    if not behind:
        return ""
    topics = " ".join(f"--topic {each}" for each in sorted(lost.made_again))
    return (
        "the log deletes a commit with the topics that it is kept beside, here the last one of task "
        f"{', '.join(behind)}, and the changelog proves earlier ones only. "
        f"`penstock reset --from-state {topics} --to-earliest` goes on with the newest of these: what was changed "
        "since is missing in the state"
    )
