"""What the driver and the task host of a slot send each other: SlotPlan, SlotMessage, HostStatus, Loss."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock import Commit, PenstockError, TopicPartition, errors
from penstock.plugins.engine.task.fronts import UNKNOWN
from penstock.plugins.engine.task.local_state.restoring import RestoreProgress
from penstock.plugins.engine.task.report import DetailedCounts, TaskReport
from penstock.support.system_errors import what_to_do
from penstock.task.progress import Front
from penstock.task.visits import Visit

_REFRESH_SECONDS = 2.0


@dataclass(frozen=True)
class HostStatus:
    """A task host as of its last answer.

    `token` is new for each host process. `open_tasks`: number of its open tasks. `rss_bytes`: its memory.
    `cpu_seconds`: its CPU time since it started. `descriptors` and `threads` are -1 where the system does not say.
    """

    token: str
    slot: int
    process: int
    open_tasks: int = 0
    rss_bytes: int = 0
    cpu_seconds: float = 0.0
    descriptors: int = -1
    threads: int = -1


class Meter:
    """Measures this process; expensive measurements are up to two seconds old."""

    def __init__(self) -> None:
        self._measured_at = -_REFRESH_SECONDS
        self._counts = (-1, -1)

    def status(self, token: str, slot: int, open_tasks: int) -> HostStatus:
        """Return the status now."""
        now = time.monotonic()
        if now >= self._measured_at + _REFRESH_SECONDS:
            self._measured_at = now
            self._counts = _descriptors(), _threads()
        used = os.times()
        return HostStatus(token, slot, os.getpid(), open_tasks, _rss(), used.user + used.system, *self._counts)


def _rss() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


def _descriptors() -> int:
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory)) - 1
        except OSError:
            continue
    return -1


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


@dataclass(frozen=True)
class Loss:
    """A lost host, in words. `process`: its number, 0 for one that never listened.

    Several proxies may meet the loss of one host: each of Spark's workers has a connection of its own.
    """

    text: str
    process: int = 0

    def __str__(self) -> str:
        return self.text


_SLOT = "slot "


@dataclass(frozen=True)
class TaskFailure:
    """A task's batch that ended with an error. `kind` is the name of one of penstock's errors."""

    task_id: str
    kind: str
    message: str
    trace: str

    @classmethod
    def of(cls, application_id: str, task_id: str, error: BaseException) -> TaskFailure:
        """Return an error as a value that can leave its process."""
        return cls._of(f"application {application_id!r}, task {task_id}", f"task {task_id}", task_id, error)

    @property
    def is_of_task(self) -> bool:
        """Whether it is the error of a single task."""
        return not self.task_id.startswith(_SLOT)

    @classmethod
    def of_slot(cls, application_id: str, slot: int, error: BaseException) -> TaskFailure:
        """Return an error that is not of a single task."""
        return cls._of(f"application {application_id!r}", f"application {application_id!r}", f"{_SLOT}{slot}", error)

    @classmethod
    def _of(cls, where: str, known_by: str, name: str, error: BaseException) -> TaskFailure:
        kind = next((each.__name__ for each in type(error).__mro__ if each is getattr(errors, each.__name__, None)), "")
        message = str(error)
        if not kind:
            fix = what_to_do(error, "use another directory") if isinstance(error, OSError) else None
            kind, message = "PenstockError", f"{type(error).__name__}: {message}" + (f"; {fix}" if fix else "")
        if known_by not in message:
            message = f"{where}: {message}"
        return cls(name, kind, message, "".join(traceback.format_exception(error)))

    def error(self) -> PenstockError:
        """Return the error to raise in the driver, with the worker's traceback as a note."""
        kind = getattr(errors, self.kind, PenstockError)
        error: PenstockError = kind(self.message)
        error.add_note(f"In the task host of {self.task_id}:\n{self.trace}")
        return error


@dataclass(frozen=True)
class TaskResult:
    """The end of a task's batch: `report` or `failure`.

    Neither if the task waits to try a failed record again, or is being opened; `restoring`: progress of its restore.
    """

    task_id: str
    report: TaskReport | None = None
    failure: TaskFailure | None = None
    restoring: RestoreProgress | None = None

    def to_data(self) -> dict[str, Any]:
        """Return this as data for JSON."""
        report = None
        if self.report is not None:
            report = asdict(replace(self.report, positions={}, purgeable={}))
            report["positions"] = offsets_to_json(self.report.positions)
            report["purgeable"] = offsets_to_json(self.report.purgeable)
        failure = None if self.failure is None else asdict(self.failure)
        restoring = None if self.restoring is None else asdict(self.restoring)
        return {"task_id": self.task_id, "report": report, "failure": failure, "restoring": restoring}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> TaskResult:
        """Return the result that `to_data` made."""
        report, failure = data["report"], data["failure"]
        if report is not None:
            report["positions"] = offsets_from_json(report["positions"])
            report["purgeable"] = offsets_from_json(report["purgeable"])
        return cls(
            data["task_id"],
            None if report is None else TaskReport(**report),
            None if failure is None else TaskFailure(**failure),
            None if (restoring := data["restoring"]) is None else RestoreProgress(**restoring),
        )


@dataclass(frozen=True)
class Observed:
    """What Spark's listeners see of a slot's batch.

    `lag`: number of records that its tasks have yet to read, as known when the batch is planned; None if it is not.
    `state_rows`: number of entries in the stores of its open tasks; None if there is none.
    """

    counts: DetailedCounts
    lag: int | None = None
    state_rows: int | None = None

    @classmethod
    def of(cls, message: SlotMessage, plan: SlotPlan, known: Mapping[str, Commit]) -> Observed:
        """Return the counts of a batch, and the records left unread when it was planned.

        `known`: the last commits by task. A task that is being restored, or waits, has not read its part of the plan.
        """
        reports = [
            each.report for results in (*message.kept.values(), message.results) for each in results if each.report
        ]
        read = (*(each.positions for each in known.values()), *(report.positions for report in reports))
        positions = {each: at for read_by_task in (plan.starts, *read) for each, at in read_by_task.items()}
        ends = ((end, positions.get(each, end)) for planned in plan.ends.values() for each, end in planned.items())
        left = plan.left + sum(max(0, end - at) for end, at in ends)
        return cls(sum(reports, DetailedCounts()), left, message.state_rows)

    def counters(self) -> dict[str, int]:
        """Return the counts of each node: "count.in", "count.out", "count.dropped.late", "count.user.cache-hits"."""
        found: dict[str, int] = {}
        for name, counts in self.counts.nodes.items():
            found |= {f"{name}.in": counts["in"], f"{name}.out": counts["out"]}
            found |= {f"{name}.dropped.{reason}": number for reason, number in counts["dropped"].items()}
            found |= {f"{name}.user.{each}": number for each, number in counts["user"].items()}
        return found


@dataclass(frozen=True)
class SlotMessage:
    """The end of a slot's batch, as a line of JSON through Spark to the driver.

    `executor` is the identity of the executor that got the slot's row. `elsewhere`: the executor that owns the slot, if
    that is another one: then no work was done. `failure`: an error of the slot as a whole: no host could be started.
    `number` counts the messages of the host; 0: its messages are not counted. `kept` has, by their numbers, the results
    of those before it that have not arrived, as far as the host knows: Spark may cut off a batch that has done its
    work, or repeat it where another executor leaves it to the slot's owner. `state_rows`: see `Observed`. `observed`:
    what was done since the last renewal; it stays with the proxy, which has columns for it. `losses`: what happened to
    hosts that were lost in this batch. `lines` are log lines that could not be sent otherwise. `planned`: the slot's
    owner in the plan. `server`: the URL of the machine's server of queries; "": none.

    A heartbeat of the continuous mode is one, too. `run` is the run of the query that its host belongs to.
    `stuck_seconds`: how long ago the host's tasks had their last turn; `stuck_in`: the task, the node and the line of
    code, if that is more than a moment. `stopped`: they have committed and are closed. `paused`: the sub-topologies of
    which the host's tasks process nothing from now on.
    """

    slot: int
    executor: str
    elsewhere: str = ""
    results: list[TaskResult] = field(default_factory=list)
    failure: TaskFailure | None = None
    host: HostStatus | None = None
    losses: list[Loss] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    planned: str = ""
    run: str = ""
    stuck_seconds: float = 0.0
    stuck_in: str = ""
    stopped: bool = False
    paused: Sequence[int] = ()
    server: str = ""
    number: int = 0
    kept: Mapping[int, Sequence[TaskResult]] = field(default_factory=dict)
    state_rows: int | None = None
    observed: Observed | None = None

    def to_json(self) -> str:
        """Return this as text."""
        data = {
            **vars(self),
            "results": [each.to_data() for each in self.results],
            "failure": None if self.failure is None else asdict(self.failure),
            "host": None if self.host is None else asdict(self.host),
            "losses": [asdict(each) for each in self.losses],
            "stuck_seconds": round(self.stuck_seconds, 3),
            "observed": None,
            "kept": {number: [each.to_data() for each in results] for number, results in self.kept.items()},
        }
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> SlotMessage:
        """Return the message that `to_json` wrote."""
        data = json.loads(text)
        data["results"] = [TaskResult.from_data(each) for each in data["results"]]
        data["failure"] = None if data["failure"] is None else TaskFailure(**data["failure"])
        data["host"] = None if data["host"] is None else HostStatus(**data["host"])
        data["losses"] = [Loss(**each) for each in data["losses"]]
        data["paused"] = tuple(data["paused"])
        data["kept"] = {
            int(number): [TaskResult.from_data(each) for each in results] for number, results in data["kept"].items()
        }
        return cls(**data)


Offsets = Mapping[TopicPartition, int]

SILENT, STUCK = "silent", "stuck"
"""Why a host seems to be dead: it sends no heartbeats, or its tasks make no turn; then with its process behind it."""
STUCK_SECONDS = 300.0
"""A host whose tasks made no turn for so long counts as dead, as Kafka's `max.poll.interval.ms`."""


@dataclass(frozen=True)
class SlotPlan:
    """A batch of one slot.

    `owner` is the identity of the executor that has the slot; "" lets any executor take it. `clock_ms` is the batch's
    wall clock. `ends` has, for each task with work, the offsets up to which it reads its input partitions.
    `global_ends` has those of the topics of global stores, and `topic_ids` the ids of these topics. The host also runs
    open tasks that are not in `ends` if a wall-clock punctuator is due, or if their commit expires.

    In continuous mode a batch is a renewal, and `ends` only names the tasks. `step`: a test's step, -1 without steps;
    then `ends` has offsets there, too. `stopping`: commit and close all tasks. `suspect`: why the host seems to be dead
    (`SILENT`, or `STUCK` and the number of its process, "stuck 123"); "" if it does not. `seconds`: total time of the
    tasks' reading; what is left then is for the next batch. None: up to the ends. `restore_seconds`: maximum time to
    wait for restores of tasks; None: until that is done, because no batch may follow. `is_settled`: every task of the
    application is open, so that local state which nobody uses belongs to tasks that have moved away. `standbys`: the
    tasks of other slots of which the host keeps warm copies. `paused`: the sub-topologies whose tasks are opened and
    commit, but process no records and call no punctuators. `left`: number of records of the slot's tasks after `ends`
    when the batch was planned. `starts`: where the batch begins to read partitions of tasks that were not open, or have
    not committed. `visits`: the visits that were asked for. `fronts`: by sub-topology, or by task where it is another
    one than that of the sub-topology, how far everything in front of the task is read once it has read up to `ends`
    (`Front`).
    """

    slot: int
    owner: str
    clock_ms: int
    ends: Mapping[str, Offsets] = field(default_factory=dict)
    global_ends: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    step: int = -1
    left: int = 0
    starts: Offsets = field(default_factory=dict)
    stopping: bool = False
    suspect: str = ""
    seconds: float | None = None
    restore_seconds: float | None = None
    is_settled: bool = False
    standbys: Sequence[str] = ()
    paused: Sequence[int] = ()
    visits: Sequence[Visit] = ()
    fronts: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def front_of(self, task: str) -> Front:
        """Return the front of a task once it has read up to `ends`."""
        time, read, is_last = (*self.fronts.get(task, self.fronts.get(task.partition("_")[0], UNKNOWN)), 0, 0)[:3]
        return Front(time, read, bool(is_last))

    def to_json(self) -> str:
        """Return this as text."""
        data = {
            **vars(self),
            "ends": {task: offsets_to_json(ends) for task, ends in self.ends.items()},
            "global_ends": offsets_to_json(self.global_ends),
            "starts": offsets_to_json(self.starts),
            "topic_ids": dict(self.topic_ids),
        }
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> SlotPlan:
        """Return the plan that `to_json` wrote."""
        data = json.loads(text)
        data["ends"] = {task: offsets_from_json(ends) for task, ends in data["ends"].items()}
        data["global_ends"] = offsets_from_json(data["global_ends"])
        data["starts"] = offsets_from_json(data["starts"])
        data["visits"] = tuple(Visit(*each) for each in data["visits"])
        return cls(**data)


def offsets_to_json(offsets: Offsets) -> list[list[Any]]:
    """Return offsets as data for JSON."""
    return [[topic, partition, offset] for (topic, partition), offset in offsets.items()]


def offsets_from_json(data: list[list[Any]]) -> dict[TopicPartition, int]:
    """Return the offsets that `offsets_to_json` made."""
    return {TopicPartition(topic, partition): offset for topic, partition, offset in data}
