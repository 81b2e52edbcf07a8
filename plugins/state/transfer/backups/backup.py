"""Makes backups: one consistent version of the state of all tasks, beside the running application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from struct import Struct

from msgpack import packb, unpackb

from penstock import (
    Application,
    ChangelogError,
    Commit,
    ConfigError,
    DeltaChangelog,
    IncompatibleStateError,
    Log,
    OffsetOutOfRangeError,
    OutputBatch,
    Restore,
    StoreError,
    TopicPartition,
    World,
)
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.changelogs.storage import absolute
from penstock.plugins.engine.program.committed import has_lost_commit
from penstock.plugins.engine.program.lag import offset_resets
from penstock.plugins.engine.program.preparation import check_restored
from penstock.plugins.engine.program.preparation import resolve as resolve_tasks
from penstock.plugins.engine.program.saved_program import (
    ProgramNote,
    SavedTask,
    is_same_program,
    reaches,
    read_note,
    repartition_topics,
    saved_tasks,
    task_partitions,
)
from penstock.plugins.engine.task.locations import Places, open_deltas, resolve
from penstock.plugins.engine.task.own_topics import LEAD_MS, LONGEST_MS, Pause, ask_for_pause
from penstock.plugins.engine.task.refusals import NO_COMMIT, ways_on
from penstock.plugins.state.copies.local_copies import beside
from penstock.plugins.state.copies.replica import Replica
from penstock.plugins.state.copies.state_reader import StateReader, rows_of

from ..task_writer import TaskWriter
from .catalog import IN_TRANSIT, Backup, Catalog, stays, stores_of

_MOST_TRIES = 20


@dataclass(frozen=True)
class Written:
    """What `back_up` wrote: the backup, and the tasks whose whole state it wrote, or only what was new, or nothing."""

    backup: Backup
    whole: tuple[str, ...]
    new: tuple[str, ...]
    unchanged: tuple[str, ...]


def back_up(
    application: Application,
    log: Log,
    location: str,
    *,
    named: str | None = None,
    whole: bool = False,
    patience_seconds: float = 30.0,
    world: World | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> Written:
    """Write a backup of the state of all tasks to `location`, beside the application if it runs.

    It counts once all of it is there. `patience_seconds`: how long to look for a moment without a commit, where tasks
    are connected by topics; they are asked to rest for it. `say` gets a line for each task. `named`: the id under which
    the backups are kept, if the application was resharded. `whole`: write all state again, e.g. because an earlier file
    is damaged.

    Raises ConfigError for an application that has saved nothing, IncompatibleStateError if the log has lost commits,
    ChangelogError that names the place, StoreError if the tasks commit too fast, and LogError.
    """
    catalog = Catalog(location, named or application.id, world)
    return _Making(application, log, catalog, world or World(), say, whole).run(patience_seconds)


class _OvertakenError(Exception):
    """A task has gone on so far that the commit of the cut cannot be read any more: make another cut."""


class _Making:
    def __init__(
        self,
        application: Application,
        log: Log,
        catalog: Catalog,
        world: World,
        say: Callable[[str], object],
        whole: bool,
    ) -> None:
        self._application, self._log, self._world, self._say = application, log, world, say
        settings = application.settings
        own = resolve(settings, settings.changelog.partition(":")[2])
        if settings.log_changelog is None and absolute(own) == absolute(catalog.location):
            raise ConfigError(
                f"{catalog.where} is where the changelog of application {application.id!r} is: name another"
            )
        self._note = read_note(application.id, log)
        if not self._note:
            raise ConfigError(
                f"application {application.id!r} has saved nothing in the log {settings.shown('log')}: it has not run "
                "there since its last reset; check --log and --data-dir"
            )
        check_restored(application.id, log)
        self._tasks = saved_tasks(application.id, log)
        self._catalog = catalog
        self._last = self._last_backup()
        is_ours = self._last is not None and self._last.identity == self._note["identity"]
        self._before = self._last if is_ours and not whole else None
        self._whole = whole
        read = {topic for topics in self._note["reads"].values() for topic in topics}
        self._intermediate = application.program.intermediate_topics(read, application.settings.intermediate_topics)
        outputs = {*application.program.sink_topics()} - self._intermediate
        self._cuts = Cuts(application.id, self._note, self._intermediate, outputs, log, world, self._follow)
        self._replicas: dict[str, Replica] = {}
        self._stack = ExitStack()

    def _last_backup(self) -> Backup | None:
        """Return the last backup that can be read, whose files the next one continues if it is of this incarnation."""
        for name in reversed(self._catalog.names()):
            try:
                return self._catalog.read(name)
            except StoreError as error:
                self._say(str(error))
        return None

    def run(self, patience_seconds: float) -> Written:
        with closing(self._cuts), self._stack:
            for task in self._tasks.values():
                if not self._has_way(task):
                    self._replica(task).catch_up()
                    self._say(f"task {task.id} is copied to this machine")
            for _ in range(_MOST_TRIES):
                cut = self._cuts.make(patience_seconds)
                try:
                    return self._written(cut)
                except (_OvertakenError, OffsetOutOfRangeError):
                    continue
        raise StoreError(
            f"application {self._application.id!r}: its tasks commit faster than their commits can be read; stop it "
            "for the backup"
        )

    def _follow(self) -> None:
        for replica in self._replicas.values():
            replica.catch_up(passes=1)

    def _written(self, cut: Cut) -> Written:
        version, commits = None, dict(cut.commits)
        for task in self._tasks.values():
            commit, replica = commits[task.id], self._replicas.get(task.id)
            if commit is None or replica is None:
                continue
            if not self._cuts.between and replica.catch_up() and replica.commit is not None:
                commits[task.id] = replica.commit  # no other task depends on which one it is
            else:
                self._brought(task, commit)
        starts = self._starts(commits)
        if self._cuts.between:
            # Before the state is written: tasks delete these records once they have processed them.
            version = f"{0:012d}-{self._world.token(8)}"
            with closing(self._catalog.changelog(IN_TRANSIT)) as records:
                records.snapshot(version, self._cuts.in_transit(cut, starts))
        written: dict[str, list[str]] = {"whole": [], "new": [], "unchanged": []}
        noted = self._catalog.noted()
        for task in self._tasks.values():
            commit = commits[task.id]
            if commit is not None:
                written[self._write(task, commit, noted.get(task.id, set()))].append(task.id)
        if not is_same_program(read_note(self._application.id, self._log), self._note):
            raise IncompatibleStateError(
                f"application {self._application.id!r} was started with another program, or reset, meanwhile: make the "
                "backup again"
            )
        now = self._world.clock.now_ms()
        if self._last is not None:
            # The clock may have gone back, and names are in the order of backups.
            now = max(now, self._last.made_at_ms + 1)
        seconds = f"{datetime.fromtimestamp(now // 1000, UTC):%Y%m%dT%H%M%S}"
        name = f"{seconds}.{now % 1000:03d}-{self._world.token(4)}"
        topics = {topic for topics in self._note["reads"].values() for topic in topics}
        read = topics - repartition_topics(self._application.id, self._note)
        ids = {topic: each for topic, each in self._log.topic_ids(read).items() if each}
        outputs = {**cut.outputs} if commits == cut.commits else {}
        outputs |= {each: end for each, end in cut.ends.items() if each.topic in self._intermediate}
        backup = Backup(
            name, self._application.id, now, self._note, commits, version, ids, outputs, starts, self._intermediate
        )
        self._catalog.write(backup)
        return Written(backup, **{how: tuple(tasks) for how, tasks in written.items()})

    def _starts(self, commits: Mapping[str, Commit | None]) -> Mapping[TopicPartition, int]:
        """Return where topics from outside begin that tasks without a commit read from their start.

        Raises _OvertakenError if one has committed since: what it has read may be deleted already.
        """
        if all(commits.values()):
            return {}
        reads = {task: read for task, read in task_partitions(self._note).items() if commits[task] is None}
        self._check_lost(reads)
        resets = offset_resets(self._application, resolve_tasks(self._application, self._log))
        internal = repartition_topics(self._application.id, self._note)
        unread = [
            each for read in reads.values() for each in read if each.topic not in internal and each.topic not in resets
        ]
        starts = self._log.start_offsets(unread)
        if any(self._log.last_commit(self._application.id, task, read) for task, read in reads.items()):
            raise _OvertakenError
        return starts

    def _check_lost(self, reads: Mapping[str, Collection[TopicPartition]]) -> None:
        """Raise IncompatibleStateError where the log has lost commits: the backup would have none of their state."""
        name, identity = self._application.id, self._note["identity"]
        lost = [task for task, read in reads.items() if has_lost_commit(self._log, name, identity, task, read)]
        if lost:
            raise IncompatibleStateError(
                f"application {name!r}: the log has lost the commits of task {', '.join(lost)}: {NO_COMMIT}. A backup "
                f"would have no state of theirs. {ways_on(self._application.settings)}"
            )

    # ------------------------------------------------------------------ a task

    def _previous(self, task: str) -> str | None:
        commit = None if self._before is None else self._before.commits.get(task)
        return None if commit is None else commit.version

    def _has_way(self, task: SavedTask) -> bool:
        """Return whether the changelog leads from the last backup of a task to its last commit."""
        commit, before = self._log.last_commit(self._application.id, task.id, task.partitions), self._previous(task.id)
        if commit is None or commit.version == before:
            return True
        if before is None or self._application.settings.log_changelog is not None:
            return False
        with closing(self._deltas(task.id)) as source:
            return _deltas_between(source, before, commit.version) is not None

    def _deltas(self, task: str) -> DeltaChangelog:
        source = open_deltas(self._application.settings, self._application.id, task, self._world)
        source.beside_writer = True
        return source

    def _write(self, task: SavedTask, commit: Commit, noted: set[str]) -> str:
        """Bring the backup of a task to a commit; return how.

        `noted`: its files that a process which is pruning may delete; if it died or is frozen, at any time.
        """
        with closing(self._catalog.changelog(task.id)) as target:
            if not self._whole and stays(target, commit.version, noted):
                target.sync()  # a process that did not come to that may have written it
                return "unchanged"
            writer, previous = TaskWriter(target, self._world), self._previous(task.id)
            # A delta from a version to itself would lead nowhere: what is there of it is damaged, or was not read.
            if (
                previous is not None
                and previous != commit.version
                and stays(target, previous, noted)
                and reaches(target, previous)
                and not target.wants_snapshot()
            ):
                with closing(self._changes(task, commit, previous, target)) as changes:
                    writer.append(changes, previous, commit)
                how, text = "new", "what is new"
            else:
                writer.write(self._brought(task, commit).rows(), commit)
                how, text = "whole", "all of its state"
            self._say(f"task {task.id}: {text} is written")
            return how

    def _changes(
        self, task: SavedTask, commit: Commit, previous: str, target: DirectoryChangelog
    ) -> Generator[tuple[str, bytes, bytes | None], None, None]:
        """Yield the rows that have changed since the last backup; None for those that were deleted."""
        if self._application.settings.log_changelog is None:
            with closing(self._deltas(task.id)) as source:
                plan = _deltas_between(source, previous, commit.version)
                if plan is not None:
                    yield from rows_of(plan)
                    return
        # Cleaned meanwhile, or damaged: the replica says which.
        replica, stores = self._brought(task, commit), stores_of(self._note, task.id)
        with StateReader(target, previous, stores) as last:
            for store in stores:
                now = replica.backend(store).range(store) if store in replica.layout else iter(())
                for key, value, new in beside(last.range(store), now):
                    if value != new:
                        yield store, key, new

    def _replica(self, task: SavedTask) -> Replica:
        if task.id not in self._replicas:
            directory = Places.of(self._application).backup(task.id)
            replica = Replica(self._application, task.id, self._log, directory, world=self._world)
            self._replicas[task.id] = self._stack.enter_context(replica)
        return self._replicas[task.id]

    def _brought(self, task: SavedTask, commit: Commit) -> Replica:
        replica = self._replica(task)
        if not replica.bring_to(commit):
            replica.catch_up()  # if it is damage and not haste, this says so
            raise _OvertakenError
        return replica


def _deltas_between(changelog: DeltaChangelog, previous: str, version: str) -> Restore | None:
    """Return the deltas from one version to another; None if the changelog does not have all of them."""
    try:
        plan = changelog.restore(version, previous)
    except ChangelogError:
        return None
    return plan if plan.base == previous else None


_THREADS = 8
_FETCHED_BYTES = 4 * 1024 * 1024
_OFFSET = Struct(">Q")
_LOOK_SECONDS = 0.02
_ALONE_SECONDS = 1.0
"""How long a moment without a commit is waited for before a pause is asked for."""
_SHORTEST_PAUSE_MS = 500
_PORTION = 10_000


@dataclass(frozen=True)
class Cut:
    """The last commit of each task, None where there is none, and the stable ends of the topics between them.

    They all held at one moment, if there are such topics. `outputs`: the ends of output topics then, where nobody
    wrote.
    """

    commits: Mapping[str, Commit | None]
    ends: Mapping[TopicPartition, int]
    outputs: Mapping[TopicPartition, int]


@dataclass(eq=False)
class Cuts:
    """Makes cuts of an application while it runs; `note` is of the program that ran last.

    `intermediate`: topics from outside through which its tasks are connected. `outputs`: the others that it writes.
    `follow` is called while a pause is waited for, so that little is to be read in it.
    """

    application_id: str
    note: ProgramNote
    intermediate: Collection[str]
    outputs: Collection[str]
    log: Log
    world: World
    follow: Callable[[], None]

    def __post_init__(self) -> None:
        self._reads = task_partitions(self.note)
        self._internal = repartition_topics(self.application_id, self.note)
        between = self._internal | {*self.intermediate}
        self.between = [each for read in self._reads.values() for each in read if each.topic in between]
        """The partitions of repartition topics and intermediate topics."""
        there = self.log.topics()
        self._outputs = [
            TopicPartition(topic, number)
            for topic in sorted(set(self.outputs) & set(there))
            for number in range(there[topic].partitions)
        ]
        self._has_made, self._pause_ms = False, 0
        self._threads = self.world.threads(_THREADS, "backup-cut")

    def close(self) -> None:
        """Release the threads."""
        self._threads.shutdown()

    def make(self, patience_seconds: float) -> Cut:
        """Return a cut. Raises StoreError if there is no moment for one within the time.

        Where topics connect tasks, that is a moment without a commit or an open transaction. After a second, or if an
        earlier cut was of no use, all tasks are asked to rest for half a second; then for twice as long.
        """
        deadline = self.world.seconds() + patience_seconds
        if not self._has_made:
            self._has_made = True
            found = self._look_for(min(_ALONE_SECONDS, patience_seconds))
            if found is not None:
                return found
        while self.world.seconds() < deadline:
            self._pause_ms = max(_SHORTEST_PAUSE_MS, min(2 * self._pause_ms, LONGEST_MS))
            begins = self.world.seconds() + LEAD_MS / 1000
            from_ms = self.world.clock.now_ms() + LEAD_MS
            ask_for_pause(self.log, self.application_id, Pause(from_ms, from_ms + self._pause_ms))
            while self.world.seconds() < begins:
                self.follow()
                self.world.sleep(_LOOK_SECONDS)
            found = self._look_for(self._pause_ms / 1000)
            if found is not None:
                return found
        asked = f", not even in pauses of up to {self._pause_ms / 1000:g} s that its tasks were asked for"
        raise StoreError(
            f"application {self.application_id!r}: there was no moment without a commit or an open transaction"
            f"{asked if self._pause_ms else ''}, and only then is it known what the commits of its tasks have written: "
            "give it more time (--patience), let the clocks of its machines agree, or stop the application for the "
            "backup; nothing was written"
        )

    def _look_for(self, seconds: float) -> Cut | None:
        """Return a cut of a moment within so many seconds, None if there is none."""
        until = self.world.seconds() + seconds
        while True:
            before = self._commits()
            partitions = [*self.between, *self._outputs]
            ends = self.log.end_offsets(partitions)
            open_ends = self.log.end_offsets(partitions, stable=False)
            # If nothing was committed between the two looks, and no transaction was open, the ends are of that moment.
            is_one = before == self._commits() and all(ends[each] == open_ends[each] for each in self.between)
            if is_one or not self.between:
                settled = [each for each in self._outputs if is_one and ends[each] == open_ends[each]]
                return Cut(before, {each: ends[each] for each in self.between}, {each: ends[each] for each in settled})
            if self.world.seconds() > until:
                return None
            self.world.sleep(_LOOK_SECONDS)

    def _commits(self) -> Mapping[str, Commit | None]:
        found = {
            task: self._threads.submit(self.log.last_commit, self.application_id, task, read)
            for task, read in self._reads.items()
        }
        self.world.wait(list(found.values()))
        return {task: commit.result() for task, commit in found.items()}

    def in_transit(self, cut: Cut, begin: Mapping[TopicPartition, int]) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield the records that waited between the tasks: the partition's name, the offset and the record.

        `begin`: where tasks without a commit read topics from outside, if not from the end. Raises
        OffsetOutOfRangeError if a task has processed them meanwhile, and they are deleted.
        """
        read = {each: at for commit in cut.commits.values() if commit for each, at in commit.positions.items()}
        starts = self.log.start_offsets([each for each in self.between if each.topic in self._internal])
        positions = {**starts, **begin, **read}
        for each in sorted(self.between, key=partition_name):
            if each not in positions:
                continue
            first = positions[each]
            yield from _records(self.log, each, first, cut.ends[each])
            if first < cut.ends[each] and self.log.start_offsets([each])[each] > first:
                raise OffsetOutOfRangeError(f"{each}: records from {first} on were processed and deleted meanwhile")


def partition_name(partition: TopicPartition) -> str:
    """Return the name under which a partition's records are kept."""
    return f"{partition.topic}:{partition.partition}"


def _records(log: Log, partition: TopicPartition, at: int, end: int) -> Iterator[tuple[str, bytes, bytes]]:
    name = partition_name(partition)
    while at < end:
        batches = log.fetch(partition, at, end, _FETCHED_BYTES)
        for batch in batches:
            headers = batch.headers or [()] * len(batch)
            for row in zip(batch.offsets, batch.keys, batch.values, batch.timestamps, headers, strict=True):
                yield name, _OFFSET.pack(row[0]), packb(row[1:])
        at = batches[-1].next_offset if batches else end


def batches_of(rows: Iterator[tuple[str, bytes, bytes]], names: Mapping[str, TopicPartition]) -> Iterator[OutputBatch]:
    """Yield the records that `Cuts.in_transit` kept, for the partitions that `names` gives by their kept names."""
    partition: TopicPartition | None = None
    found: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]] = []
    for name, _, data in rows:
        if found and (names[name] != partition or len(found) >= _PORTION):
            assert partition is not None
            yield _batch(partition, found)
            found = []
        partition = names[name]
        found.append(unpackb(data))
    if partition is not None and found:
        yield _batch(partition, found)


def _batch(
    partition: TopicPartition, rows: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]
) -> OutputBatch:
    keys, values, timestamps, headers = map(list, zip(*rows, strict=True))
    made = [tuple((name, value) for name, value in each) for each in headers]
    targets = [(partition.partition,)] * len(rows)
    return OutputBatch(partition.topic, keys, values, timestamps, made if any(made) else None, list(targets))
