"""RunStatus: what a driver says of its run, so that `penstock status` and metrics can show it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from penstock.plugins.runtime.local_state.restoring import RestoreProgress
from penstock.plugins.runtime.report import Counts, DetailedCounts

LOST_AFTER_SECONDS = 20.0
"""A driver that has written no status for so long has lost its lease, too."""
RUNNING, STOPPED, FAILED, LOST = "running", "stopped", "failed", "lost"


@dataclass(frozen=True)
class TaskStatus(Counts):
    """A task as its driver knows it. Counts are of the whole run.

    `slot`, `host` and `process` say where it runs. `is_open`: False while it is being opened, which may be a long
    restore. `restore_seconds`: time spent opening it. `records_per_second`: records in, over the last minute.
    `last_commit_ms`: when the driver heard of its last commit. `restoring`: how far its state is restored, while that
    lasts.
    """

    task: str
    slot: int
    host: str = ""
    process: int | None = None
    is_open: bool = False
    restore_seconds: float = 0.0
    records_per_second: float = 0.0
    last_commit_ms: int | None = None
    restoring: RestoreProgress | None = None


@dataclass(frozen=True)
class SlotHost:
    """The task host of a slot, and what it takes of its machine; -1 where the system does not say."""

    slot: int
    host: str
    process: int
    open_tasks: int
    rss_bytes: int
    cpu_seconds: float
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Event:
    """Something that went wrong and was mended, and when."""

    at_ms: int
    text: str


@dataclass(frozen=True)
class RunStatus(DetailedCounts):
    """A run as its driver knows it. Counts are of the whole run; times are the driver's clock.

    `number` counts the application's runs. `written_ms`: when the driver said this. `ended_ms`: when the run ended;
    None while it goes on. `ended_by`: "done" when everything was processed, a signal's name, or "stop"; None after an
    error, which is in `error`. `workers_lost` and `moves`: as in `RunSummary`.
    `events`: the latest of them, the oldest first.
    """

    application_id: str
    driver: str
    trigger: str
    started_ms: int
    written_ms: int
    number: int = 1
    ended_ms: int | None = None
    ended_by: str | None = None
    error: str | None = None
    batches: int = 0
    records_per_second: float = 0.0
    workers_lost: int = 0
    moves: Mapping[str, int] = field(default_factory=dict)
    tasks: Sequence[TaskStatus] = ()
    hosts: Sequence[SlotHost] = ()
    events: Sequence[Event] = ()

    def state(self, now_ms: int) -> str:
        """Return "running", "stopped", "failed", or "lost": its driver should have written since."""
        if self.ended_ms is not None:
            return STOPPED if self.error is None else FAILED
        return RUNNING if now_ms - self.written_ms <= LOST_AFTER_SECONDS * 1000 else LOST

    def to_json(self) -> str:
        """Return this as text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RunStatus:
        """Return the status that `to_json` made; another release may have written fewer fields, or more."""
        data = json.loads(text)
        for name, kind in (("tasks", TaskStatus), ("hosts", SlotHost), ("events", Event)):
            data[name] = tuple(_made(kind, each) for each in data.get(name, ()))
        data["tasks"] = tuple(
            replace(each, restoring=_made(RestoreProgress, each.restoring))
            if isinstance(each.restoring, dict)
            else each
            for each in data["tasks"]
        )
        return _made(cls, data)


_Made = TypeVar("_Made")


def _made(kind: type[_Made], data: Mapping[str, Any]) -> _Made:
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in data.items() if name in names})
