"""Restores an application from a backup: into its log and its changelog, where it then continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from penstock import (
    Application,
    Commit,
    DeltaChangelog,
    Log,
    LogChangelog,
    PenstockError,
    StoreBackend,
    TopicPartition,
    World,
    version_counter,
)
from penstock.changelog import version_name
from penstock.plugins.engine.program.changelog_location import note_location
from penstock.plugins.engine.program.checkpoint_files import delete_checkpoint
from penstock.plugins.engine.program.committed import CommittedPartitions
from penstock.plugins.engine.program.preparation import changelog_config, repartition_config
from penstock.plugins.engine.program.saved_program import saved_layouts, task_partitions
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.locations import open_changelog, open_deltas
from penstock.plugins.engine.task.topic_ids import without_ids
from penstock.program.layouts import id_of_version
from penstock.store.backend import in_portions

from ..changelog_move import restored
from .catalog import IN_TRANSIT, stores_of
from .cut import batches_of, partition_name
from .restore_plan import RESTORE_MARK, RestorePlan, changelog_topics, names_under, restored_note


def restore_backup(
    application: Application,
    log: Log,
    plan: RestorePlan,
    check_lease: Callable[[], None] = lambda: None,
    *,
    world: World | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> list[str]:
    """Carry a plan out; return remarks. The caller holds the application's lease, and `check_lease` raises without it.

    Until the end the application refuses to start. After an error, what was written is deleted; after a kill, the next
    restore does that. Raises ChangelogError that names a damaged file of the backup, or the place that cannot be
    written, and LogError.
    """
    restoring = _Restoring(application, log, plan, world or World(), say)
    check_lease()
    notes.RESTORING.write(application.id, log, restoring.mark)
    try:
        if plan.is_repeated:
            restoring.clear()
        remark = delete_checkpoint(application.settings, application.id)
        positions, commits = restoring.write(check_lease)
        check_lease()
        restoring.commit(positions, commits)
    except PenstockError:
        with suppress(PenstockError):
            check_lease()
            restoring.clear()
            notes.RESTORING.take_back(application.id, log)
        raise
    return [each for each in (remark, *restoring.remarks) if each is not None]


def _written_since(plan: RestorePlan, log: Log) -> Iterator[str]:
    """Yield remarks on topics that have more than at the time of the backup: outputs, and intermediate topics."""
    before, topics = plan.backup.outputs, log.topics()
    there = [each for each in before if each.topic in topics and each.partition < topics[each.topic].partitions]
    ends = log.end_offsets(there)
    more = {each: f"{each} from {before[each]} to {ends[each]}" for each in there if ends[each] > before[each]}
    if more:
        yield f"outputs of the time since the backup are produced again: {', '.join(more.values())}"
    passed = [text for each, text in more.items() if each.topic in plan.backup.intermediate]
    if passed:
        yield (
            "so the application does not read what was written meanwhile to topics that it writes and reads: "
            f"{', '.join(passed)}; if others write there, too, send those records of theirs again"
        )


class _Restoring:
    def __init__(
        self, application: Application, log: Log, plan: RestorePlan, world: World, say: Callable[[str], object]
    ) -> None:
        self._application, self._log, self._plan, self._world, self._say = application, log, plan, world, say
        self._backup = plan.backup
        self.mark = f"{RESTORE_MARK}{plan.backup.name}"
        self._names = names_under(plan.backup, application.id)
        self.remarks: list[str] = []

    def clear(self) -> None:
        """Delete what a restore has written, but for the note that it has begun."""
        topics = self._log.topics()
        for name in (*self._names.values(), *changelog_topics(self._plan, self._application)):
            if name in topics:
                self._log.delete_topic(name)
        if self._application.settings.log_changelog is None:
            for task in self._backup.commits:
                with closing(open_deltas(self._application.settings, self._application.id, task)) as changelog:
                    changelog.world = self._world
                    changelog.destroy()
        self._log.delete_commits(self._application.id)
        notes.RESTORING.write(self._application.id, self._log, self.mark)

    def write(self, check_lease: Callable[[], None]) -> tuple[Mapping[TopicPartition, int], Mapping[str, Commit]]:
        """Write state and records; return where what waited begins now, by former names, and the commits."""
        self.remarks = list(_written_since(self._plan, self._log))
        positions = self._write_records()
        self._make_topics()
        commits = {}
        for task, commit in self._backup.commits.items():
            if commit is None:
                continue
            check_lease()
            moved = {
                TopicPartition(self._names.get(each.topic, each.topic), each.partition): positions.get(each, at)
                for each, at in commit.positions.items()
            }
            commits[task] = self._write_state(task, replace(commit, positions=moved, engine_state=self._state(commit)))
            self._say(f"task {task} is restored")
        return positions, commits

    def _state(self, commit: Commit) -> bytes:
        """Return an engine state with the names of this application's topics."""
        state: dict[str, Any] = json.loads(without_ids(commit.engine_state) or b"{}")
        if times := state.get("partitions"):
            split = {name: name.rpartition(":") for name in times}
            state["partitions"] = {
                f"{self._names.get(split[name][0], split[name][0])}:{split[name][2]}": at for name, at in times.items()
            }
        return json.dumps(state, separators=(",", ":")).encode() if state else b""

    def _write_records(self) -> Mapping[TopicPartition, int]:
        """Make the repartition topics; write the records that waited; return where these begin, by the former names."""
        counts = self._backup.note["fingerprint"]["partitions"]
        before = [TopicPartition(topic, number) for topic in self._names for number in range(counts[topic])]
        now = {each: TopicPartition(self._names[each.topic], each.partition) for each in before}
        topics = self._log.topics()
        for topic in self._names.values():
            if topic not in topics:
                count = self._plan.note["fingerprint"]["partitions"][topic]
                config = repartition_config(self._application, topic)
                self._log.create_topic(topic, count, config, internal=True)
        now |= {each: each for each in self._moved()}
        ends = self._log.end_offsets(list(now.values())) if now else {}
        if self._backup.in_transit is not None:
            named = {partition_name(each): found for each, found in now.items()}
            with closing(self._plan.catalog.changelog(IN_TRANSIT)) as kept:
                rows = (
                    (name, key, value or b"")
                    for changes, _ in kept.restore(self._backup.in_transit, None).steps
                    for name, found in changes.items()
                    if name in named
                    for key, value in found
                )
                for batch in batches_of(rows, named):
                    self._log.append(batch)
        return {each: ends[found] for each, found in now.items()}

    def _moved(self) -> Iterator[TopicPartition]:
        """Yield the partitions of intermediate topics that are not read from where the backup continues.

        What was written there since is produced again, so it is passed over.
        """
        backup, same = self._backup, self._plan.same_topics(self._log)
        read = {each: at for commit in backup.commits.values() if commit for each, at in commit.positions.items()}
        positions = {each: at for each, at in {**backup.starts, **read}.items() if each.topic in backup.intermediate}
        starts, ends = self._log.start_offsets(list(positions)), self._log.end_offsets(list(positions))
        for each, at in positions.items():
            if each.topic not in same or ends[each] != backup.outputs[each] or starts[each] > at:
                yield each

    def _make_topics(self) -> None:
        changelog, topics, program = (
            self._application.settings.log_changelog,
            self._log.topics(),
            self._application.program,
        )
        builders = {store.name: store for each in program.subtopologies for store in each.stores}
        for name, (store, tasks) in changelog_topics(self._plan, self._application).items():
            if name not in topics:
                assert changelog is not None
                builder = builders.get(store)
                config = (
                    changelog.topic_config
                    if builder is None
                    else changelog_config(self._application, changelog, builder, name)
                )
                self._log.create_topic(name, tasks, config, internal=True)

    def _write_state(self, task: str, commit: Commit) -> Commit:
        """Write the state of a task to its changelog; return the commit that names the version there."""
        application, stores = self._application, stores_of(self._backup.note, task)
        if not stores:
            return commit
        layout = id_of_version(commit.version)
        version = version_name(version_counter(commit.version), None, self._world.token) + (
            "" if layout is None else f"_{layout}"
        )
        layouts = saved_layouts(self._backup.note, task.partition("_")[0])
        every = {name: kept for name, kept in layouts.now.items() if kept.logged}
        with (
            closing(self._plan.catalog.changelog(task)) as kept,
            restored(kept.restore(commit.version, None), stores) as backend,
            closing(open_changelog(application.settings, application.id, task, self._log, every)) as changelog,
        ):
            changelog.world = self._world
            if isinstance(changelog, LogChangelog):
                commit = replace(commit, version=version + changelog.version_suffix(None))
                self._append(changelog, backend, sorted(every))
            elif isinstance(changelog, DeltaChangelog):
                commit = replace(commit, version=version)
                changelog.snapshot(version, ((store, *row) for store in stores for row in backend.range(store)), commit)
        return commit

    def _append(self, changelog: LogChangelog, backend: StoreBackend, stores: Sequence[str]) -> None:
        for store in stores:
            for rows in in_portions(backend.range(store)):
                for batch in changelog.records({store: rows}):
                    self._log.append(batch)

    def commit(self, positions: Mapping[TopicPartition, int], commits: Mapping[str, Commit]) -> None:
        """Make the commits of all tasks, then the notes with which the application may start.

        `positions`: where what waited begins, by former names; a task without a commit has to begin there, too.
        """
        application, log = self._application, self._log
        note = restored_note(self._plan, application.id, positions)
        committed = {each for commit in commits.values() for each in commit.positions}
        begin = {each: at for each, at in positions.items() if each.topic not in self._names and each not in committed}
        if begin:
            log.set_positions(application.id, begin)
        reads = task_partitions(note)
        for task, commit in commits.items():
            with closing(log.open_lasting_committer(application.id, task, reads[task])) as committer:
                committer.commit(commit, [])
        identity = note["identity"]
        CommittedPartitions(log, application.id, identity).add(committed)
        if application.settings.log_changelog is None:
            note_location(application, log, identity)
        notes.PROGRAM.write(application.id, log, note)
        notes.RESTORING.take_back(application.id, log)
