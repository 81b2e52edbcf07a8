"""RunCollector: the counts of a run as metrics of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.plugins.applications.lag import PartitionLag
from penstock.plugins.applications.run_status import RunStatus

Samples = Iterable[tuple[Sequence[object], float]]
"""Values with those of their labels, behind that of `application`."""

MOST_REASONS = 50
"""A processor may make up reasons for dropping; of each node the most frequent ones are labels, the rest is "other"."""


class RunCollector(Collector):
    """Makes metrics from `status` and `lag` at each scrape. Names, types and labels are in docs/metrics.md."""

    def __init__(self, status: Callable[[], RunStatus], lag: Callable[[], Sequence[PartitionLag]]) -> None:
        self._status = status
        self._lag = lag

    def collect(self) -> Iterator[Metric]:
        status, lag = self._status(), self._lag()
        made = _Families(status.application_id)
        yield made.gauge("start_time_seconds", "When the run started.", [], [((), status.started_ms / 1000)])
        yield made.counter("batches", "Batches of Spark that ended.", [], [((), status.batches)])
        yield made.counter(
            "workers_lost", "Task hosts replaced, and queries started again.", [], [((), status.workers_lost)]
        )
        yield made.counter("task_openings", "Openings of tasks.", ["reason"], _by_key(status.openings))
        yield made.counter("slot_moves", "Slots that went to another executor.", ["reason"], _by_key(status.moves))
        yield made.counter("phase_seconds", "Time that tasks spent.", ["phase"], _by_key(status.phases))
        yield from _of_tasks(made, status)
        yield from _of_nodes(made, status)
        yield from _of_hosts(made, status)
        yield made.gauge(
            "lag_offsets",
            "End offset minus position.",
            ["topic", "partition", "task"],
            [((each.topic, each.partition, each.task), each.lag) for each in lag],
        )


class _Families:
    def __init__(self, application_id: str) -> None:
        self._application_id = application_id

    def counter(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
        return self._filled(CounterMetricFamily(f"penstock_{name}", text, labels=["application", *labels]), samples)

    def gauge(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
        return self._filled(GaugeMetricFamily(f"penstock_{name}", text, labels=["application", *labels]), samples)

    def _filled(self, family: CounterMetricFamily | GaugeMetricFamily, samples: Samples) -> Metric:
        for labels, value in samples:
            family.add_metric([self._application_id, *map(str, labels)], value)
        return family


def _of_tasks(made: _Families, status: RunStatus) -> Iterator[Metric]:
    tasks = status.tasks
    yield made.gauge(
        "task_open", "1 if a task host has the task open.", ["task"], [((t.task,), t.is_open) for t in tasks]
    )
    restoring = [(t.task, t.restoring) for t in tasks if t.restoring is not None]
    yield made.gauge(
        "task_restoring_share",
        "How much of its changelog a task has read whose state is restored.",
        ["task"],
        [((task,), each.share) for task, each in restoring if each.share is not None],
    )
    yield made.gauge(
        "task_restoring_seconds_left",
        "How long that will take, at the rate so far.",
        ["task"],
        [((task,), each.seconds_left) for task, each in restoring if each.seconds_left is not None],
    )
    for name, text, values in (
        ("task_records_in", "Records that the task read.", [t.records_in for t in tasks]),
        ("task_records_out", "Records that the task produced.", [t.records_out for t in tasks]),
        ("task_records_dropped", "Records that the task dropped.", [t.dropped for t in tasks]),
        ("task_commits", "Commits of the task.", [t.commits for t in tasks]),
        ("task_restored_records", "Records restored from the changelog.", [t.restored for t in tasks]),
        ("task_restore_seconds", "Time spent opening the task.", [t.restore_seconds for t in tasks]),
    ):
        yield made.counter(name, text, ["task"], [((t.task,), value) for t, value in zip(tasks, values, strict=True)])
    yield made.gauge(
        "task_last_commit_timestamp_seconds",
        "When the driver heard of the task's last commit.",
        ["task"],
        [((t.task,), t.last_commit_ms / 1000) for t in tasks if t.last_commit_ms is not None],
    )


def _of_nodes(made: _Families, status: RunStatus) -> Iterator[Metric]:
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


def _of_hosts(made: _Families, status: RunStatus) -> Iterator[Metric]:
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
    """Return the most frequent ones of counts by reason, and the sum of the rest as "other".

    >>> len(bounded({f"key {number}": 1 for number in range(1000)}))
    51
    """
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    found = dict(ordered[:MOST_REASONS])
    if rest := sum(count for _, count in ordered[MOST_REASONS:]):
        found["other"] = found.get("other", 0) + rest
    return found


def _by_key(counts: Mapping[str, float]) -> Samples:
    return [((name,), value) for name, value in counts.items()]
