"""The metrics of a run, and the reporters that get them every few seconds. Names: docs/metrics.md."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice

from penstock import Application, Measure, MeasureKind, MetricsReporter, SystemClock, duration_ms
from penstock.hooks import registry
from penstock.plugins.engine.program.lag import PartitionLag
from penstock.plugins.engine.program.run_status import RunStatus, TaskStatus
from penstock.support.repeats import Repeats

from ..companion import Companion
from ..order import STATES
from ..settings import METRICS_INTERVAL, METRICS_REPORTERS, reporter_names

_LAST_SECONDS = 10.0

_log = logging.getLogger("penstock.runs")


class MetricsReporters(Companion):
    """The reporters of the setting `metrics_reporters`."""

    def around(self) -> AbstractContextManager[object]:
        return reporting(self.run.application, self.run.status, self.run.lag)


@contextmanager
def reporting(
    application: Application, status: Callable[[], RunStatus], lag: Callable[[], Sequence[PartitionLag]]
) -> Iterator[None]:
    """Report `status` and `lag` during the block, and once more at its end. Raises the reporters' errors."""
    names = reporter_names(METRICS_REPORTERS.of(application.settings))
    if not names:
        yield
        return
    made = {name: registry().load("metrics reporter", name)(application.id, application.settings) for name in names}
    seconds = duration_ms(METRICS_INTERVAL.of(application.settings)) / 1000
    reports = _Reports(application.id, made, seconds, status, lag)
    try:
        yield
    finally:
        reports.close()


@dataclass(eq=False)
class _Reports:
    """The thread that reports."""

    application_id: str
    reporters: dict[str, MetricsReporter]
    seconds: float
    status: Callable[[], RunStatus]
    lag: Callable[[], Sequence[PartitionLag]]

    def __post_init__(self) -> None:
        self._repeats = Repeats(SystemClock().now_ms)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-metrics-reporters", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(self.seconds)
            try:
                status = self.status()
                measures = list(measures_of(status, self.lag()))
            except Exception as error:  # the next report follows
                self._repeats.log(
                    _log, logging.ERROR, None, "application %r: its metrics cannot be made: %r", self.application_id,
                    error,
                )  # fmt: skip
                continue
            for name, reporter in self.reporters.items():
                try:
                    reporter.report(measures, status.started_ms, status.written_ms)
                    if is_last:
                        reporter.close()
                except Exception as error:
                    self._repeats.log(
                        _log, logging.WARNING, name, "application %r: metrics reporter %r raised %s: %s",
                        self.application_id, name, type(error).__name__, error,
                    )  # fmt: skip
        self._repeats.write_rest()

    def close(self) -> None:
        """Report once more, and close the reporters; do not wait long for one that hangs."""
        self._ended.set()
        self._thread.join(_LAST_SECONDS)


MOST_REASONS = 50
"""A processor may make up reasons and counters; of each node the first ones are labels, the rest is "other"."""


Samples = Iterable[tuple[Sequence[object], float | Sequence[float]]]


def measures_of(status: RunStatus, lag: Sequence[PartitionLag]) -> Iterator[Measure]:
    """Yield the metrics of a run. Each has the application's id as its first label."""
    made = _Maker(status.application_id)
    yield made.gauge("start_time_seconds", "When the run started.", [], [((), status.started_ms / 1000)])
    yield made.gauge(
        "state", "1 for the state of the run.", ["state"], [((state,), state == status.phase) for state in STATES]
    )
    yield made.gauge(
        "subtopology_paused", "1 for each paused sub-topology.", ["subtopology"], [((p,), 1) for p in status.paused]
    )
    yield made.gauge(
        "visit_tasks_left",
        "Tasks in which the latest visit is not over.",
        ["visitor"],
        [((v.visitor,), 0 if v.state == "stopped" else v.tasks - v.done) for v in status.visits],
    )
    yield made.gauge(
        "visit_entries",
        "Entries that the latest visit has visited.",
        ["visitor"],
        [((v.visitor,), v.visited) for v in status.visits],
    )
    yield made.counter("batches", "Batches of Spark that ended.", [], [((), status.batches)])
    yield made.counter(
        "workers_lost", "Task hosts replaced, and queries started again.", [], [((), status.workers_lost)]
    )
    yield made.counter("task_openings", "Openings of tasks.", ["reason"], _by_key(status.openings))
    yield made.counter("slot_moves", "Slots that went to another executor.", ["reason"], _by_key(status.moves))
    yield made.counter("phase_seconds", "Time that tasks spent.", ["phase"], _by_key(status.phases))
    for name, metric, text in (
        ("latency", "record_latency_seconds", "From a record's timestamp to the end of its processing."),
        ("lateness", "record_lateness_seconds", "How far records were behind the stream time."),
        ("commit", "commit_seconds", "How long commits took."),
    ):
        yield made.histogram(metric, text, ["subtopology"], _by_key(status.times.get(name, {})))
    yield from _of_tasks(made, status)
    yield made.counter("store_changes", "Rows that commits wrote.", ["store"], _by_key(status.store_changes))
    for at, (name, text) in enumerate(
        (
            ("store_gets", "Gets and fetches of tasks."),
            ("store_puts", "Puts and deletions of tasks."),
            ("store_reads", "Gets that read the store backend."),
            ("store_read_seconds", "Time of reads of the store backend."),
        )
    ):
        yield made.counter(name, text, ["store"], [((store,), n[at]) for store, n in status.store_calls.items()])
    yield from _of_nodes(made, status)
    calls = status.calls.items()
    yield made.counter(
        "node_calls",
        "Calls of the node's records in flight that ended.",
        ["node", "result"],
        [((node, result), n[at]) for node, n in calls for at, result in enumerate(("returned", "failed", "timed out"))],
    )
    yield made.counter("node_call_seconds", "Time of these calls.", ["node"], [((node,), n[3]) for node, n in calls])
    yield from _of_hosts(made, status)
    yield made.gauge(
        "lag_offsets",
        "End offset minus position.",
        ["topic", "partition", "task"],
        [((each.topic, each.partition, each.task), each.lag) for each in lag],
    )


class _Maker:
    def __init__(self, application_id: str) -> None:
        self._application_id = application_id

    def counter(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Measure:
        return self._measure(name, MeasureKind.COUNTER, text, labels, samples)

    def gauge(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Measure:
        return self._measure(name, MeasureKind.GAUGE, text, labels, samples)

    def histogram(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Measure:
        return self._measure(name, MeasureKind.HISTOGRAM, text, labels, samples)

    def _measure(self, name: str, kind: MeasureKind, text: str, labels: Sequence[str], samples: Samples) -> Measure:
        filled = [([self._application_id, *map(str, given)], value) for given, value in samples]
        return Measure(f"penstock_{name}", kind, text, ["application", *labels], filled)


def _of_tasks(made: _Maker, status: RunStatus) -> Iterator[Measure]:
    tasks = status.tasks
    gauges: tuple[tuple[str, str, Callable[[TaskStatus], float | None]], ...] = (
        ("task_open", "1 if a task host has the task open.", lambda t: t.is_open),
        (
            "task_restoring_share",
            "How much of its changelog a task has read whose state is restored.",
            lambda t: None if t.restoring is None else t.restoring.share,
        ),
        (
            "task_restoring_seconds_left",
            "How long that will take, at the rate so far.",
            lambda t: None if t.restoring is None else t.restoring.seconds_left,
        ),
        (
            "task_last_commit_timestamp_seconds",
            "When the driver heard of the task's last commit.",
            lambda t: None if t.last_commit_ms is None else t.last_commit_ms / 1000,
        ),
        ("task_state_bytes", "Size of the task's local state on disk.", lambda t: t.state_bytes),
        ("task_records_in_flight", "Records whose calls have no result yet.", lambda t: t.in_flight),
    )
    for name, text, value in gauges:
        found = [((t.task,), each) for t in tasks if (each := value(t)) is not None]
        yield made.gauge(name, text, ["task"], found)
    counters: tuple[tuple[str, str, Callable[[TaskStatus], float]], ...] = (
        ("task_records_in", "Records that the task read.", lambda t: t.records_in),
        ("task_records_out", "Records that the task produced.", lambda t: t.records_out),
        ("task_records_dropped", "Records that the task dropped.", lambda t: t.dropped),
        ("task_commits", "Commits of the task.", lambda t: t.commits),
        ("task_punctuations", "Punctuators that the task called.", lambda t: t.punctuations),
        ("task_restored_records", "Records restored from the changelog.", lambda t: t.restored),
        ("task_restore_seconds", "Time spent opening the task.", lambda t: t.restore_seconds),
    )
    for name, text, count in counters:
        yield made.counter(name, text, ["task"], [((t.task,), count(t)) for t in tasks])


def _of_nodes(made: _Maker, status: RunStatus) -> Iterator[Measure]:
    nodes = status.nodes.items()
    yield made.counter(
        "node_records_in", "Records that arrived at the node.", ["node"], [((name,), n["in"]) for name, n in nodes]
    )
    yield made.counter(
        "node_records_out", "Records that the node forwarded.", ["node"], [((name,), n["out"]) for name, n in nodes]
    )
    yield made.counter(
        "node_records_dropped",
        "Records that the node dropped.",
        ["node", "reason"],
        [((name, reason), count) for name, n in nodes for reason, count in bounded(n["dropped"]).items()],
    )
    yield made.counter(
        "node_user",
        "The processor's own counters.",
        ["node", "counter"],
        [((name, counter), count) for name, n in nodes for counter, count in bounded(n["user"]).items()],
    )


def _of_hosts(made: _Maker, status: RunStatus) -> Iterator[Measure]:
    hosts = status.hosts
    for name, text, values in (
        ("host_resident_memory_bytes", "Memory of the slot's task host.", [h.rss_bytes for h in hosts]),
        ("host_open_descriptors", "Open files of the slot's task host.", [h.descriptors for h in hosts]),
        ("host_threads", "Threads of the slot's task host.", [h.threads for h in hosts]),
    ):
        yield made.gauge(name, text, ["slot"], [((h.slot,), value) for h, value in zip(hosts, values, strict=True)])
    yield made.counter(
        "host_cpu_seconds", "CPU time of the slot's task host.", ["slot"], [((h.slot,), h.cpu_seconds) for h in hosts]
    )


def bounded(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the first ones of counts by name, and the sum of the rest as "other".

    They stay the first, as names are added behind those that are there: so no counter falls, nor ends.

    >>> bounded({f"key {number}": 1 for number in range(1000)})["other"]
    950
    """
    named = iter(counts.items())
    found = dict(islice(named, MOST_REASONS))
    if rest := sum(count for _, count in named):
        found["other"] = found.get("other", 0) + rest
    return found


def _by_key(counts: Mapping[str, float] | Mapping[str, Sequence[float]]) -> Samples:
    return [((name,), value) for name, value in counts.items()]
