"""TaskLoop: the tasks of one process, which poll, process and commit on their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from penstock import (
    Application,
    Commit,
    Follower,
    Log,
    LogError,
    OffsetOutOfRangeError,
    RecordBatch,
    StaleStoreError,
    TaskId,
    Ticker,
    TopicPartition,
    World,
)
from penstock.plugins.logs.following import open_follower
from penstock.task.failures import RetryRequested
from penstock.task.visits import Visit

from ..local_state.restoring import RestoreProgress
from ..process_resources import ProcessResources
from ..report import FailedTask, TaskReport
from ..task_runner import rows_of
from .continuous_worker import ContinuousWorker
from .looks import FrontLooks, FrontOf, GlobalUpdates, TopicWatch, no_front
from .threads import Commits, Openings, Pools, Upkeeps

_MOST_POLLED, _FEWEST_POLLED = 4_000, 400
"""Records of one poll: fewer where tasks have records to process, which would leave the processor's cache meanwhile."""
_CHUNK = _MOST_POLLED
"""Records that one task processes before the next task gets its turn: all of a poll, which are in the cache by then."""
_TURN_SECONDS = 0.05
"""How long tasks work in a turn; the last one ends with its record or punctuator. Between two turns commits begin."""
_LONGEST_WAIT, _SHORT_WAIT, _STALLED_WAIT, _OPENING_WAIT = 0.05, 0.001, 0.01, 0.005
_ANSWER_WAIT, _CALLS_A_WAIT, _LONGEST_ANSWER_WAIT, _ENOUGH_ANSWERS = 0.001, 16, 0.010, 0.25
"""How long the log is polled before a turn takes the answers of calls that have come: once this long, and once more for
so many calls, up to the last, or until this share of the calls has one. Many answers in one turn cost little more than
one does.
"""
_ANSWER_LOOK = 0.0025
"""The longest wait between two looks whether there are so many."""
_CLEAN_UP_SECONDS = 60.0
_LAST_SECONDS = 5.0
"""How long `close` waits for commits and openings that are under way."""
_ALARM_SECONDS, _IDLE_LOOKS = 0.02, 50
"""Number of looks without work after which the alarm rests until the next work: an idle process costs nothing."""
_MOST_QUEUED, _MOST_QUEUED_BYTES = 100_000, 32 << 20
"""An input with more records, or about so many bytes, that wait is not read on, until it has a fifth of that."""
_SAMPLED, _RECORD_BYTES = 8, 100


class TaskLoop:
    """Runs tasks of one process. One thread calls all methods but `still` and `restoring`.

    Processors belong to it, and stores of open tasks. What waits or may take long is done by others: fences, restores,
    filling stores from topics, writing commits and snapshots, cleaning up.

    `partitions`: the input partitions of every task, by id. `clock` returns the tasks' wall clock (ms).
    """

    def __init__(
        self,
        application: Application,
        partitions: Mapping[str, Sequence[TopicPartition]],
        log: Log,
        resources: ProcessResources,
        clock: Callable[[], int],
    ) -> None:
        self._application = application
        self._partitions = partitions
        self._log, self._resources, self._clock = log, resources, clock
        self._follower = open_follower(log)
        self._upstream = application.program.upstream()
        self._known: dict[str, Commit] = {}
        self._tasks: dict[str, ContinuousWorker] = {}
        self._names: dict[TopicPartition, str] = {}
        self._open_at: dict[str, float] = {}
        self._busy: dict[str, ContinuousWorker] = {}
        most_bytes = application.settings.input_buffer_max_bytes
        self._pauses = Pauses(self._follower, lambda each: self._tasks[self._names[each]].queued(each), most_bytes)
        self._has_more, self._stalled, self._ready = False, False, 0  # the last: records to process in the next turn
        self._ends: Mapping[TopicPartition, int | None] = {}  # as the tasks last worked with them
        self._failures: list[FailedTask] = []
        self.paused: Sequence[int] = ()
        self.current = ""
        """The task whose processors or stores the loop's thread calls now."""
        world, self._seconds = resources.world, resources.world.seconds
        self._alarm = Alarm(world)
        self._pools = Pools(world)
        self._preparing = Openings(self._pools, world)
        self._globals = GlobalUpdates(application, log, resources, self._pools.rest)
        self._least_interval, self._clean_up_at = -1.0, 0.0
        self._upkeeps = Upkeeps(world, self._fail)
        at_work = partial(setattr, self, "current")
        self._writing = Commits(self._tasks, self._pools.commits, world, self._upkeeps, at_work, self._fail)
        self._fronts = FrontLooks(application, partitions, log, self._pools.rest, world.seconds)
        self._topics = TopicWatch(application.id, log, self._pools.rest, world.seconds, self._fail)

    # ------------------------------------------------------------------ which tasks

    def run(
        self, names: Iterable[str], known: Mapping[str, Commit], paused: Sequence[int] = (),
        visits: Sequence[Visit] | None = None,
    ) -> None:  # fmt: skip
        """Run these tasks from now on, too; open tasks that are neither open nor being opened.

        `known`: commits that the log must have. `paused`: sub-topologies that process nothing until the next call, and
        `visits`: see `LoggedTask.ask`.
        """
        self._known.update(known)
        for name in names:
            if name not in self._tasks:
                self._add(name)
            if not self._tasks[name].is_open and name not in self._preparing:
                self._open_at.setdefault(name, 0.0)
        self.paused = paused
        for task in self._tasks.values():
            task.is_paused = task.id.subtopology in paused
            task.ask(visits)

    def _add(self, name: str) -> None:
        partitions = self._partitions[name]
        self._names.update(dict.fromkeys(partitions, name))
        task = ContinuousWorker(
            self._application, TaskId.parse(name), partitions, self._log,
            resources=self._resources, task_count=len(self._partitions),
            phase=list(self._partitions).index(name) / len(self._partitions),
        )  # fmt: skip
        for each in self._tasks.values():
            for one, other in ((task, each), (each, task)):
                if one.id.subtopology in self._upstream[other.id.subtopology]:
                    other.upstream.append(one)
        self._tasks[name] = task

    @property
    def open_tasks(self) -> int:
        """How many tasks are open."""
        return sum(task.is_open for task in self._tasks.values())

    @property
    def state_rows(self) -> int | None:
        """How many entries the stores of the open tasks have; None if none is open. See `TaskState.count_rows`."""
        return rows_of(self._tasks.values())

    def still(self) -> tuple[float, str]:
        """Return the seconds without progress of a restore or filling in other threads, and its name.

        Any thread may call it.
        """
        return max(self._preparing.still(), self._globals.still())

    def restoring(self) -> dict[str, RestoreProgress]:
        """Return the restore progress of each task; any thread may call it."""
        return self._preparing.restoring()

    # ------------------------------------------------------------------ a turn

    def turn(self, longest_wait: float = _LONGEST_WAIT) -> int:
        """Take arrived records, process some, and make due commits; return the number of processed records.

        Waits for records, at most `longest_wait` seconds, and works for about `_TURN_SECONDS`. In a pause it commits,
        and takes nothing. Raises LogError when the log is away for too long.
        """
        self._writing.end_written()
        self._upkeeps.end_steps()
        self._topics.look(self._tasks)
        if self._topics.pauses.is_on(self._clock()):
            return self._writing.rest(min(longest_wait, _STALLED_WAIT))
        self._update_globals()
        self._open_tasks()
        self._fronts.look(self._tasks.values(), self._clock(), self.paused)
        self._poll(min(longest_wait, self._wait_seconds()))
        done = self._work(self._clock()) if self._globals.are_filled else 0
        self._writing.begin_due(self._seconds())
        self._clean_up()
        return done

    def _update_globals(self, *, all_of_it: bool = False) -> None:
        try:
            self._globals.update(self._clock(), are_used=self.open_tasks > 0, all_of_it=all_of_it)
        except StaleStoreError as error:
            for name, task in self._tasks.items():
                if task.is_open:
                    self._fail(name, error)
            self._globals.begin_anew()

    def _wait_seconds(self) -> float:
        """Return the seconds until the next due work if no record arrives."""
        if self._has_more:
            return 0.0
        if self._writing:
            return _SHORT_WAIT
        now, clock_ms = self._seconds(), self._clock()
        wait = _STALLED_WAIT if self._stalled else _LONGEST_WAIT
        if self._preparing or self._globals.are_filling:
            wait = _OPENING_WAIT
        for name, task in self._tasks.items():
            tick = task.tick_at(clock_ms)
            if tick is not None and not task.rests:
                wait = min(wait, (tick - clock_ms) / 1000)
            wait = min(wait, task.commit_due() - now)
            if name in self._open_at and self._globals.are_filled:
                wait = min(wait, self._open_at[name] - now)
        return max(0.0, wait)

    def _poll(self, seconds: float) -> None:
        try:
            batches = self._arrived(seconds, max(_FEWEST_POLLED, _MOST_POLLED - self._ready))
        except LogError as error:
            if error.partition is None:
                raise
            self._go_on(error.partition, error)
            return
        for batch in batches:
            partition = TopicPartition(batch.topic, batch.partition)
            task = self._tasks[name := self._names[partition]]
            if not task.is_open:
                continue
            task.feed(batch)
            self._busy[name] = task
            self._pauses.note(partition, batch)

    def _arrived(self, seconds: float, most: int) -> list[RecordBatch]:
        """Poll the log; end sooner where calls of a task have answers."""
        calling = [each for each in self._tasks.values() if each.calls_under_way]
        if not calling:
            return self._follower.poll(seconds, most)
        began, calls = self._seconds(), sum(each.calls_under_way for each in calling)
        patience = min(_ANSWER_WAIT * (1 + calls // _CALLS_A_WAIT), _LONGEST_ANSWER_WAIT)
        left = seconds
        while True:
            batches = self._follower.poll(min(left, patience, _ANSWER_LOOK), most)
            waited, answers = self._seconds() - began, sum(each.answers for each in calling)
            left = seconds - waited
            has_answers = answers and (waited >= patience or answers >= _ENOUGH_ANSWERS * calls)
            if batches or left <= 0 or has_answers:
                return batches

    def _go_on(self, partition: TopicPartition, error: LogError) -> None:
        """Follow a partition from where `offset_out_of_range` says; after any other error close its task."""
        name = self._names[partition]
        try:
            if not isinstance(error, OffsetOutOfRangeError):
                raise error
            self._follower.remove([partition])
            self._follower.add({partition: self._tasks[name].out_of_range(partition, error)})
            self._busy[name] = self._tasks[name]
        except Exception as failure:
            self._fail(name, failure)

    def _work(self, clock_ms: int) -> int:
        """Let tasks process that have records, or whose punctuators are due."""
        for name, task in self._tasks.items():
            tick = task.tick_at(clock_ms)
            if tick is not None and tick <= clock_ms:
                self._busy[name] = task
        total = 0
        self._has_more, self._stalled, self._ready = False, False, 0
        ends = self._ends = self._follower.ends()
        until, has_worked = self._seconds() + _TURN_SECONDS, False
        for name, task in list(self._busy.items()):
            if not task.is_open:
                self._busy.pop(name, None)  # the commit of another task may have failed it
                continue
            if task.rests or task.is_paused:
                continue
            if has_worked and self._seconds() >= until:
                self._has_more = True
                self._ready += task.queued()
                continue
            if task.may_take_long(clock_ms):
                self._writing.begin_due(self._seconds(), but=name)
                if task.rests or not task.is_open:  # its own commit was due, too, and may have failed
                    continue
            # Whoever had a turn goes to the end, so that the next turn begins with those that had none.
            self._busy[name] = self._busy.pop(name)
            self.current, has_worked = name, True
            self._alarm.begin(task.end_soon, until)
            try:
                done = task.work(ends, clock_ms, _CHUNK)
            except BaseException as error:
                self._fail(name, error)
                continue
            finally:
                is_cut_off = self._alarm.end()
            total += done
            if not task.has_records():
                del self._busy[name]
            elif done or is_cut_off:
                self._ready += task.queued()
                self._has_more = True
            else:
                self._stalled = True
        self.current = ""
        self._pauses.end()
        return total

    def _clean_up(self) -> None:
        now = self._seconds()
        if now >= self._clean_up_at:
            self._clean_up_at = now + _CLEAN_UP_SECONDS
            self._pools.do("cleaning up local state", partial(self._resources.clean_up, self._application))

    # ------------------------------------------------------------------ opening

    def _open_tasks(self) -> None:
        """Begin to open tasks that are due; complete the opening of prepared tasks."""
        if not self._globals.are_filled:
            return
        now, clock_ms = self._seconds(), self._clock()
        for name, at in list(self._open_at.items()):
            task = self._tasks[name]
            if at <= now and name not in self._preparing:
                del self._open_at[name]
                self._preparing.begin(name, task, clock_ms, self._known)
            elif task.commit_expires():
                self._preparing.renew(name, task, clock_ms, self._known)
        for number, (name, error) in enumerate(self._preparing.take_ended()):
            if not number:
                self._writing.begin_due(self._seconds(), but=name)  # `init` of a processor may take long
            self._open(name, error, clock_ms)
            if self._seconds() >= now + _TURN_SECONDS:
                break

    def _open(self, name: str, failed: BaseException | None, clock_ms: int) -> None:
        task = self._tasks[name]
        self.current = name
        try:
            if failed is not None:
                raise failed
            positions = task.open(clock_ms, self._known.get(name))
            self._least_interval = task.fit_interval(self._least_interval)
            self._follower.add(positions)
        except BaseException as error:
            self._fail(name, error)
            return
        finally:
            self.current = ""
        self._busy[name] = task

    # ------------------------------------------------------------------ failures

    def _fail(self, name: str, error: BaseException) -> None:
        """Close a task after an error; open it again where that helps."""
        task, partitions = self._tasks[name], self._partitions[name]
        self._busy.pop(name, None)
        self._open_at.pop(name, None)
        self._pauses.forget(partitions)
        self._follower.remove(partitions)
        if self._writing.fail_later(name, error):
            return
        error, now = task.cause_of(error), self._seconds()
        if task.abandon_after(error):
            self._open_at[name] = now
        elif isinstance(error, RetryRequested):
            self._open_at[name] = now + error.delay_ms / 1000
        elif isinstance(error, Exception):
            # Not opened again here: it may belong to the host of a successor, if this one's driver is frozen.
            self._failures.append(FailedTask(name, error))
        else:
            raise error

    # ------------------------------------------------------------------ what came of it

    def take_failures(self) -> list[FailedTask]:
        """Return the failures since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def take_reports(self) -> list[TaskReport]:
        """Return reports of the work that tasks have committed since the last call."""
        return [report for task in self._tasks.values() for report in task.take_reports()]

    # ------------------------------------------------------------------ steps, and the end

    def process_to(self, ends: Mapping[str, Mapping[TopicPartition, int]], front_of: FrontOf = no_front) -> None:
        """Process until tasks have read up to `ends`, or wait for records that are not there; then commit.

        `front_of` returns the `front` of a task (see `Task.plan`).
        """
        for name, task in self._tasks.items():
            task.step(front_of(name), ends.get(name))
        self._update_globals(all_of_it=True)
        while True:
            has_processed = bool(self.turn(_SHORT_WAIT)) or self._has_more
            is_busy = self._preparing or self._writing or self._upkeeps.are_running or self._globals.are_filling
            is_working = has_processed or is_busy or any(at <= self._seconds() for at in self._open_at.values())
            if not is_working and all(map(self._has_read, ends, ends.values())):
                break
        self.commit_all()

    def _has_read(self, name: str, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether a task has read up to `ends` and finished its visits.

        False while an end is unknown; True if the task is not open.
        """
        task = self._tasks[name].task
        if task is None:
            return True
        is_visiting = task.visits.are_due and not self._tasks[name].is_paused
        if is_visiting or any(self._ends.get(each) is None for each in self._partitions[name]):
            return False
        fetched = task.inputs.fetched()
        return all(fetched[partition] >= end for partition, end in ends.items())

    def commit_all(self) -> None:
        """Commit the tasks' work, and wait until it is written."""
        self._writing.end_written(patiently=True)
        for name, task in self._tasks.items():
            # One that rests for a snapshot has processed nothing since its last commit.
            if task.is_open and not task.rests:
                self._writing.begin(name)
        self._writing.end_written(patiently=True)

    def close(self, *, commit: bool = True) -> None:
        """Commit, unless `commit` is False, and close every task.

        Waits some seconds for commits and openings that are under way; a longer one closes its task at its end.
        """
        try:
            if commit:
                self.commit_all()
        finally:
            self._globals.close(_LAST_SECONDS)
            late = {**self._preparing.close(_LAST_SECONDS), **self._writing.close(_LAST_SECONDS)}
            self._pools.close()
            for name, task in self._tasks.items():
                if name in late:
                    late[name].add_done_callback(task.close_after)
                else:
                    task.close()
            self._upkeeps.close()
            self._alarm.close()
            self._follower.close()


class _Work:
    """One stretch of work: the function that ends it, its time limit (on the stopwatch), and whether it was ended."""

    __slots__ = ("end", "has_rung", "until")

    def __init__(self, end: Callable[[], None], until: float) -> None:
        self.end, self.until, self.has_rung = end, until, False


class Alarm:
    """Calls a function when a stretch of work takes too long. The working thread calls `begin` and `end`.

    A clock that is read after each record would cost as much as a small program. So a ticker looks at it now and then,
    and sets a flag that the loop over records reads anyway (`TaskProgress.end_soon`).
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._work: _Work | None = None
        self._ticker: Ticker | None = None
        self._idle_looks, self._rests = 0, False

    def begin(self, end: Callable[[], None], until: float) -> None:
        """Let `end` be called once `until` has passed, some milliseconds later, unless `self.end` is called before."""
        self._work = _Work(end, until)
        if self._ticker is None:
            self._ticker = self._world.ticker("penstock-alarm", _ALARM_SECONDS, self.look)
        elif self._rests:
            self._look_again()

    def end(self) -> bool:
        """End the stretch; return whether the alarm has ended it."""
        work, self._work = self._work, None
        return work is not None and work.has_rung

    def close(self) -> None:
        """Look no more."""
        if self._ticker is not None:
            self._ticker.close()

    def look(self) -> None:
        """End the present stretch if its time is over. The ticker calls it, maybe in another thread."""
        work = self._work
        if work is None:
            self._idle_looks += 1
            if self._idle_looks >= _IDLE_LOOKS:
                self._rest()
            return
        self._idle_looks = 0
        if not work.has_rung and self._world.seconds() >= work.until:
            work.has_rung = True
            work.end()

    def _rest(self) -> None:
        ticker = self._ticker
        if ticker is not None:
            ticker.pause()
            # In this order: whoever begins work from here on lets it look again.
            self._rests = True
            if self._work is not None:  # it began just before
                self._look_again()

    def _look_again(self) -> None:
        self._idle_looks, self._rests = 0, False
        if self._ticker is not None:
            self._ticker.resume()


class Pauses:
    """The inputs of a loop's tasks that its follower does not read on now.

    `queued` returns how many records of an input wait. `most_bytes`: about how many bytes may wait in all inputs
    together. Where it is more, no input is read on of which any record waits: a task that waits for another input gets
    that one's records in any case.
    """

    def __init__(self, follower: Follower, queued: Callable[[TopicPartition], int], most_bytes: int) -> None:
        self._follower = follower
        self._queued = queued
        self._most_bytes = most_bytes
        self._few: dict[TopicPartition, int] = {}
        """The inputs that are paused, with the number of records below which each is read on."""
        self._sizes: dict[TopicPartition, int] = {}
        """About how many bytes a record of each input takes."""
        self._total = 0
        """At most so many bytes wait in all inputs."""

    def note(self, partition: TopicPartition, batch: RecordBatch) -> None:
        """Pause inputs whose queues, with the batch just read, are too long."""
        some = batch.values[:_SAMPLED]
        if not some:
            return
        size = sum(len(value) for value in some if value is not None) // len(some) + _RECORD_BYTES
        self._sizes[partition] = size
        most = min(_MOST_QUEUED, _MOST_QUEUED_BYTES // size)
        if self._queued(partition) > most:
            self._pause(partition, most // 5 + 1)
        self._total += len(batch) * size
        if self._total > self._most_bytes and self._count() > self._most_bytes:
            for each in self._sizes:
                if each not in self._few and self._queued(each):
                    self._pause(each, 1)

    def _pause(self, partition: TopicPartition, few: int) -> None:
        self._few[partition] = few
        self._follower.pause([partition])

    def _count(self) -> int:
        self._total = sum(self._queued(each) * size for each, size in self._sizes.items())
        return self._total

    def end(self) -> None:
        """Resume inputs with few waiting records, if all inputs together have not too many."""
        if self._few:
            is_little = self._count() < self._most_bytes // 2
            free = [each for each, few in self._few.items() if (queued := self._queued(each)) < few or not queued]
            free += [each for each, few in self._few.items() if few == 1 and is_little and each not in free]
            if free:
                for each in free:
                    del self._few[each]
                self._follower.resume(free)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget inputs that are not followed any more."""
        for partition in partitions:
            self._few.pop(partition, None)
            self._sizes.pop(partition, None)
