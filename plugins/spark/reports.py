"""WorkerMessage: a task's report of a batch, or its failure, sent through Spark to the driver as a line of JSON."""

from __future__ import annotations

import json
import traceback
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock import errors
from penstock.errors import PenstockError
from penstock.plugins.runtime.report import TaskReport
from penstock.record import TopicPartition
from penstock.system_errors import what_to_do


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
        kind = next((each.__name__ for each in type(error).__mro__ if each is getattr(errors, each.__name__, None)), "")
        message = str(error)
        if not kind:
            fix = what_to_do(error, "use another directory") if isinstance(error, OSError) else None
            kind, message = "PenstockError", f"{type(error).__name__}: {message}" + (f"; {fix}" if fix else "")
        if f"task {task_id}" not in message:
            message = f"application {application_id!r}, task {task_id}: {message}"
        return cls(task_id, kind, message, "".join(traceback.format_exception(error)))

    def error(self) -> PenstockError:
        """Return the error to raise in the driver, with the worker's traceback as a note."""
        kind = getattr(errors, self.kind, PenstockError)
        error: PenstockError = kind(self.message)
        error.add_note(f"In the worker of task {self.task_id}:\n{self.trace}")
        return error


@dataclass(frozen=True)
class WorkerMessage:
    """The end of a task's batch: `report` or `failure`, and log lines that could not be sent otherwise."""

    report: TaskReport | None = None
    failure: TaskFailure | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    process: int = 0

    def to_json(self) -> str:
        """Return this as text."""
        report = None
        if self.report is not None:
            report = asdict(replace(self.report, positions={}, purgeable={}))
            report["positions"] = positions_to_list(self.report.positions)
            report["purgeable"] = positions_to_list(self.report.purgeable)
        return json.dumps(
            {
                "report": report,
                "failure": None if self.failure is None else asdict(self.failure),
                "lines": self.lines,
                "process": self.process,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> WorkerMessage:
        """Return what `to_json` wrote."""
        data = json.loads(text)
        report, failure = data["report"], data["failure"]
        if report is not None:
            report["positions"] = positions_from_list(report["positions"])
            report["purgeable"] = positions_from_list(report["purgeable"])
        return cls(
            None if report is None else TaskReport(**report),
            None if failure is None else TaskFailure(**failure),
            data["lines"],
            data["process"],
        )


def positions_to_list(positions: Any) -> list[list[Any]]:
    """Return positions as data for JSON."""
    return [[topic, partition, position] for (topic, partition), position in positions.items()]


def positions_from_list(data: list[list[Any]]) -> dict[TopicPartition, int]:
    """Return what `positions_to_list` made."""
    return {TopicPartition(topic, partition): position for topic, partition, position in data}
