"""RunStatus: a driver's report of its run, in a topic of the application; `penstock status` and metrics show it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from penstock import Log, OutputBatch, TopicPartition
from penstock.plugins.engine.task.local_state.restoring import RestoreProgress
from penstock.plugins.engine.task.locations import read_up_to
from penstock.plugins.engine.task.own_topics import STATUS
from penstock.plugins.engine.task.report import Counts, DetailedCounts
from penstock.task.visits import Visit

LOST_AFTER_SECONDS = 20.0
"""A driver that has written no status for so long has lost its lease, too."""
RUNNING, STOPPED, FAILED, LOST = "running", "stopped", "failed", "lost"
READY_SECONDS = 20.0
"""In continuous mode: a task host without a message for so long makes the application not ready."""
LIVE_SECONDS = 300.0
"""A driver's loop, or a host of the continuous mode, without a sign for so long is not alive. It is as long as tasks
may make no turn, and longer than a broker is away at a restart."""
_KEY = b"status"
_LATEST = 4
"""Number of latest records to read: a frozen driver's report may follow its successor's."""


@dataclass(frozen=True)
class TaskStatus(Counts):
    """A task as its driver knows it. Counts are of the whole run.

    `slot`, `host` and `process` say where it runs. `is_open`: False while it is being opened, which may be a long
    restore. `restore_seconds`: time spent opening it. `records_per_second`: records in, over the last minute.
    `last_commit_ms`: time at which the driver got the report of its last commit. `punctuations`: number of punctuator
    calls. `state_bytes`: the size of its local state on disk, up to half a minute old. `restoring`: progress of its
    restore, if one is running. `visits`: by visitor, and `in_flight`: as in TaskReport.
    """

    task: str
    slot: int
    host: str = ""
    process: int | None = None
    is_open: bool = False
    restore_seconds: float = 0.0
    records_per_second: float = 0.0
    last_commit_ms: int | None = None
    punctuations: int = 0
    state_bytes: int | None = None
    restoring: RestoreProgress | None = None
    visits: Mapping[str, Sequence[int]] = field(default_factory=dict)
    in_flight: int = 0


@dataclass(frozen=True)
class VisitOfRun:
    """The latest visit of a visitor, as far as the run's tasks have said. `state`: "not over", "over" or "stopped".

    `asked_ms`: time of the request. `done` of `tasks` tasks are over, and `visited` entries were visited in all.
    """

    visitor: str
    asked_ms: int
    state: str
    tasks: int
    done: int
    visited: int

    @classmethod
    def of(cls, visit: Visit, tasks: Iterable[TaskStatus]) -> VisitOfRun:
        """Return the progress of a visit."""
        counts = [task.visits[visit.visitor] for task in tasks if visit.visitor in task.visits]
        done = sum((number, is_over) >= (visit.number, 1) for number, is_over, _ in counts)
        visited = sum(visited for number, _, visited in counts if number == visit.number)
        state = "stopped" if visit.is_stopped else "over" if done == len(counts) > 0 else "not over"
        return cls(visit.visitor, visit.number, state, len(counts), done, visited)


@dataclass(frozen=True)
class SlotHost:
    """A slot's task host, as of `heard_ms`, and what it takes of its machine; -1: the system does not say."""

    slot: int
    host: str
    process: int
    open_tasks: int
    rss_bytes: int
    cpu_seconds: float
    descriptors: int
    threads: int
    heard_ms: int | None = None


@dataclass(frozen=True)
class Event:
    """A fault that was repaired, and when."""

    at_ms: int
    text: str


@dataclass(frozen=True)
class Health:
    """Whether a run is alive and ready. `reason` says why it is not; "" if it is both.

    Alive: it works, or restores, or waits for something that may come. Ready: all of its tasks are open,
    and none is paused.
    """

    is_live: bool
    is_ready: bool
    reason: str = ""


@dataclass(frozen=True)
class RunStatus(DetailedCounts):
    """A run as its driver knows it. Counts are of the whole run; times are the driver's clock.

    `number` counts the application's runs. `written_ms`: time of this report. `ended_ms`: end of the run; None while it
    continues. `ended_by`: "done" when everything was processed, a signal's name, or "stop"; None after an error, which
    is in `error`. `workers_lost` and `moves`: as in `RunSummary`. `events`: the latest of them, the oldest first.
    `phase`: the state of the run as `Running.state` has it, "" from an earlier release; `phase_since_ms`: when it
    began. `paused`: the sub-topologies that are paused. `turned_ms`: when the run's loop made its last turn; None
    before the first. `times`: by name as in TaskReport, and then by sub-topology, the data of a histogram.
    `store_changes`: rows that commits wrote, by store. `store_calls`: numbers of gets, of puts and of reads of the
    store backend, and seconds of these reads, by store. `calls`: by node, as in TaskReport. `visits`: the latest of
    each visitor that was asked for.
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
    phase: str = ""
    paused: Sequence[int] = ()
    turned_ms: int | None = None
    times: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    store_changes: Mapping[str, int] = field(default_factory=dict)
    store_calls: Mapping[str, Sequence[float]] = field(default_factory=dict)
    calls: Mapping[str, Sequence[float]] = field(default_factory=dict)
    visits: Sequence[VisitOfRun] = ()
    phase_since_ms: int | None = None

    @property
    def since_ms(self) -> int:
        """Since when a run that goes on is in its phase; where that is `running`, since the run's start."""
        return self.started_ms if self.phase in ("", RUNNING) or self.phase_since_ms is None else self.phase_since_ms

    def state(self, now_ms: int) -> str:
        """Return "running", "stopped", "failed", or "lost": its driver should have written since."""
        if self.ended_ms is not None:
            return STOPPED if self.error is None else FAILED
        return RUNNING if now_ms - self.written_ms <= LOST_AFTER_SECONDS * 1000 else LOST

    def health(self, now_ms: int) -> Health:
        """Return whether the run is alive and ready. `now_ms`: the driver's clock, or one that is close to it."""
        state = self.state(now_ms)
        if state != RUNNING:
            return Health(False, False, f"the run is {state}" + (f": {self.error}" if self.error else ""))
        if self.turned_ms is not None and (silent := (now_ms - self.turned_ms) / 1000) > LIVE_SECONDS:
            return Health(False, False, f"the driver's loop has made no turn for {silent:.0f} s")
        # In batches a host says something at the end of a batch, which may take long.
        heard = [each for each in self.hosts if each.heard_ms is not None and self.trigger == "continuous"]
        for host in sorted(heard, key=lambda each: each.heard_ms or 0)[:1]:
            silent = (now_ms - (host.heard_ms or 0)) / 1000
            if silent > READY_SECONDS:
                where = f"{host.host}, process {host.process}"
                text = f"the task host of slot {host.slot} ({where}) has said nothing for {silent:.0f} s"
                return Health(silent <= LIVE_SECONDS, False, text)
        closed = sum(not task.is_open for task in self.tasks)
        if self.phase not in ("", RUNNING) or closed:
            tasks = f": {closed} of {len(self.tasks)} tasks are not open" if self.tasks and closed else ""
            return Health(True, False, f"the application is {self.phase or 'rebalancing'}{tasks}")
        if self.paused:
            return Health(True, False, f"paused sub-topologies: {', '.join(map(str, self.paused))}")
        return Health(True, True)

    def health_data(self, health: Health) -> dict[str, Any]:
        """Return its health as data for JSON: what `penstock health --json` prints and the endpoint answers."""
        return {
            "application_id": self.application_id,
            "live": health.is_live,
            "ready": health.is_ready,
            "state": self.phase,
            "reason": health.reason,
        }

    def to_json(self) -> str:
        """Return this as text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RunStatus:
        """Return the status that `to_json` made; another release may have written fewer fields, or more."""
        data = json.loads(text)
        for name, kind in (
            ("tasks", TaskStatus),
            ("hosts", SlotHost),
            ("events", Event),
            ("visits", VisitOfRun),
        ):
            data[name] = tuple(_made(kind, each) for each in data.get(name, ()))
        data["paused"] = tuple(data.get("paused", ()))
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


class StatusTopic:
    """Writes and reads the status of an application's runs."""

    def __init__(self, log: Log, application_id: str) -> None:
        self._log = log
        self._application_id, self._name = application_id, STATUS.of(application_id)
        self._is_there = False

    def write(self, status: RunStatus) -> None:
        """Keep a status; the topic is made when it is not there."""
        if not self._exists():
            STATUS.make(self._application_id, self._log)
            self._is_there = True
        # A thousand tasks take some hundred kilobytes of text, and Kafka takes a megabyte a record.
        value = zlib.compress(status.to_json().encode(), 1)
        self._log.append(OutputBatch(self._name, [_KEY], [value], [status.written_ms]))

    def read(self) -> RunStatus | None:
        """Return the status of the latest run; None when no driver has written one."""
        if not self._exists():
            return None
        partition = TopicPartition(self._name, 0)
        end = self._log.end_offsets([partition])[partition]
        at = max(self._log.start_offsets([partition])[partition], end - _LATEST)
        found = [
            RunStatus.from_json(zlib.decompress(value).decode())
            for batch in read_up_to(self._log, partition, at, end)
            for value in batch.values
            if value
        ]
        return max(reversed(found), key=lambda status: status.number, default=None)

    def _exists(self) -> bool:
        self._is_there = self._is_there or self._name in self._log.topics()
        return self._is_there
