"""SlotMessage: what the tasks of a slot did, sent through Spark or the log to the driver as a line of JSON."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock import Commit, PenstockError, errors
from penstock.plugins.engine.task.local_state.restoring import RestoreProgress
from penstock.plugins.engine.task.report import DetailedCounts, TaskReport
from penstock.support.system_errors import what_to_do

from .plan import SlotPlan, offsets_from_json, offsets_to_json
from .status import HostStatus, Loss

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

    Neither if the task waits to try a failed record again, or is being opened; `restoring`: how far its state is
    restored.
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

    `lag`: how many records its tasks have yet to read, as far as is known when the batch is planned; None if it is not.
    `state_rows`: how many entries the stores of its open tasks have; None if there is none.
    """

    counts: DetailedCounts
    lag: int | None = None
    state_rows: int | None = None

    @classmethod
    def of(cls, message: SlotMessage, plan: SlotPlan, known: Mapping[str, Commit]) -> Observed:
        """Return what a batch did, and what was left when it was planned.

        `known`: the last commits by task. A task that is being restored, or waits, has not read its part of the plan.
        """
        reports = [
            each.report for results in (*message.kept.values(), message.results) for each in results if each.report
        ]
        read = (*(each.positions for each in known.values()), *(each.positions for each in reports))
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

    `executor` is the identity of the executor that got the slot's row. `elsewhere`: nothing was done, because the slot
    belongs to the executor of this identity. `failure` is one that is not of a single task: no host could be started.
    `number` counts the messages of the host; 0: its messages are not counted. `kept` has, by their numbers, the
    results of those before it that have not arrived, as far as the host knows: Spark may cut off a batch that has done
    its work, or repeat it where another executor leaves it to the slot's owner. `state_rows`: see `Observed`.
    `observed`: what was done since the last renewal; it stays with the proxy, which has columns for it.
    `losses`: what happened to hosts that were lost in this batch. `lines` are log lines that could not be sent
    otherwise. `planned`: the slot's owner in the plan. `server`: the URL of the machine's server of queries; "": none.

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
