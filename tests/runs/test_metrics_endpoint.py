"""The endpoint for Prometheus: names, labels, ports."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import ConfigError, MeasureKind, MissingPackageError, Settings
from penstock.plugins.engine.program.lag import PartitionLag
from penstock.plugins.engine.program.run_status import RunStatus, SlotHost, TaskStatus, VisitOfRun
from penstock.plugins.engine.run.metrics.collector import RunCollector
from penstock.plugins.engine.run.metrics.endpoint import metrics_endpoint
from penstock.plugins.engine.run.metrics.reporting import measures_of
from penstock.plugins.engine.run.order import STATES
from penstock.plugins.engine.task.local_state.restoring import RestoreProgress
from penstock.plugins.engine.task.report import DetailedCounts, Histogram

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def measured(*seconds: float) -> list[float]:
    """Return the data of a histogram of some times."""
    histogram = Histogram()
    for each in seconds:
        histogram.observe(each)
    return histogram.take()


STATUS = RunStatus(
    "shop", "root@node, process 7", "0s", 1_500, 2_000, batches=3, workers_lost=1, openings={"first": 1, "moved": 2},
    moves={"rebalanced": 1}, phases={"read": 0.25},
    tasks=[
        TaskStatus(
            "0_0", 0, "node", 8, True, 0.5, last_commit_ms=1_750,
            records_in=50, records_out=40, dropped=5, commits=6, restored=7, punctuations=9, state_bytes=4096,
            in_flight=3,
        ),
        TaskStatus("0_1", 1, restoring=RestoreProgress(70, 35.0, 2.0, 0.25, 6.0)),
    ],
    hosts=[SlotHost(0, "node", 8, 1, 2**20, 1.5, 30, 4)],
    nodes={"count": {"in": 45, "out": 40, "dropped": {"late": 3, "null_key": 2}, "user": {"cache-hits": 12}}},
    phase="rebalancing", paused=[1], visits=[VisitOfRun("keep.scale", 1_600, "not over", 2, 1, 30)],
    store_changes={"counts": 44}, store_calls={"counts": [9, 8, 7, 0.5]}, calls={"rate": [6, 5, 4, 0.75]},
    times={name: {"0": measured(0.0005, 0.02, 7200)} for name in ("latency", "lateness", "commit")},
)  # fmt: skip
LAG = [PartitionLag("0_0", "orders", 0, False, 3, 10, 7)]


def scraped(port: int) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and the values of its labels, in the order of their names."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as response:
        text = response.read().decode()
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_counts_of_a_run(free_port: int) -> None:
    with metrics_endpoint(Settings(metrics_port=free_port), lambda: STATUS, lambda: LAG):
        found = scraped(free_port)
    states: dict[tuple[str, ...], float] = {
        ("penstock_state", "shop", state): state == "rebalancing" for state in STATES
    }
    left_out = "penstock_host", "penstock_record_lat", "penstock_commit_seconds"
    assert {name: value for name, value in found.items() if not name[0].startswith(left_out)} == {
        ("penstock_start_time_seconds", "shop"): 1.5,
        **states,
        ("penstock_subtopology_paused", "shop", "1"): 1,
        ("penstock_visit_tasks_left", "shop", "keep.scale"): 1,
        ("penstock_visit_entries", "shop", "keep.scale"): 30,
        ("penstock_store_changes_total", "shop", "counts"): 44,
        ("penstock_store_gets_total", "shop", "counts"): 9,
        ("penstock_store_puts_total", "shop", "counts"): 8,
        ("penstock_store_reads_total", "shop", "counts"): 7,
        ("penstock_store_read_seconds_total", "shop", "counts"): 0.5,
        ("penstock_task_punctuations_total", "shop", "0_0"): 9,
        ("penstock_task_punctuations_total", "shop", "0_1"): 0,
        ("penstock_task_state_bytes", "shop", "0_0"): 4096,
        ("penstock_task_records_in_flight", "shop", "0_0"): 3,
        ("penstock_task_records_in_flight", "shop", "0_1"): 0,
        ("penstock_node_calls_total", "shop", "rate", "returned"): 6,
        ("penstock_node_calls_total", "shop", "rate", "failed"): 5,
        ("penstock_node_calls_total", "shop", "rate", "timed out"): 4,
        ("penstock_node_call_seconds_total", "shop", "rate"): 0.75,
        ("penstock_batches_total", "shop"): 3,
        ("penstock_workers_lost_total", "shop"): 1,
        ("penstock_task_openings_total", "shop", "first"): 1,
        ("penstock_task_openings_total", "shop", "moved"): 2,
        ("penstock_slot_moves_total", "shop", "rebalanced"): 1,
        ("penstock_phase_seconds_total", "shop", "read"): 0.25,
        ("penstock_task_restoring_share", "shop", "0_1"): 0.25,
        ("penstock_task_restoring_seconds_left", "shop", "0_1"): 6.0,
        ("penstock_task_open", "shop", "0_0"): 1,
        ("penstock_task_open", "shop", "0_1"): 0,
        ("penstock_task_records_in_total", "shop", "0_0"): 50,
        ("penstock_task_records_in_total", "shop", "0_1"): 0,
        ("penstock_task_records_out_total", "shop", "0_0"): 40,
        ("penstock_task_records_out_total", "shop", "0_1"): 0,
        ("penstock_task_records_dropped_total", "shop", "0_0"): 5,
        ("penstock_task_records_dropped_total", "shop", "0_1"): 0,
        ("penstock_task_commits_total", "shop", "0_0"): 6,
        ("penstock_task_commits_total", "shop", "0_1"): 0,
        ("penstock_task_restored_records_total", "shop", "0_0"): 7,
        ("penstock_task_restored_records_total", "shop", "0_1"): 0,
        ("penstock_task_restore_seconds_total", "shop", "0_0"): 0.5,
        ("penstock_task_restore_seconds_total", "shop", "0_1"): 0,
        ("penstock_task_last_commit_timestamp_seconds", "shop", "0_0"): 1.75,
        ("penstock_node_records_in_total", "shop", "count"): 45,
        ("penstock_node_records_out_total", "shop", "count"): 40,
        ("penstock_node_records_dropped_total", "shop", "count", "late"): 3,
        ("penstock_node_records_dropped_total", "shop", "count", "null_key"): 2,
        ("penstock_node_user_total", "shop", "cache-hits", "count"): 12,
        ("penstock_lag_offsets", "shop", "0", "0_0", "orders"): 7,
    }
    for name in ("record_latency", "record_lateness", "commit"):
        buckets = {each[2]: value for each, value in found.items() if each[0] == f"penstock_{name}_seconds_bucket"}
        assert (buckets["0.001"], buckets["0.01"], buckets["0.02"], buckets["3600.0"], buckets["+Inf"]) == (
            1,
            1,
            2,
            2,
            3,
        )
        assert found[f"penstock_{name}_seconds_count", "shop", "0"] == 3
        assert found[f"penstock_{name}_seconds_sum", "shop", "0"] == pytest.approx(7200.0205)
    assert found["penstock_host_resident_memory_bytes", "shop", "0"] == 2**20
    with pytest.raises(URLError):
        scraped(free_port)  # it ends with its block


def test_every_metric_is_on_its_page() -> None:
    names = {
        f"{each.name}_total" if each.kind is MeasureKind.COUNTER else each.name: each
        for each in measures_of(STATUS, LAG)
    }
    rows = re.findall(r"^\| `(penstock_[a-z_]+)` \| (\w+) \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    assert {name: (kind, re.findall(r"\w+", labels)) for name, kind, labels in rows} == {
        name: (each.kind.value, list(each.labels[1:])) for name, each in names.items()
    }
    assert all(each.samples for each in names.values())  # alert rules and dashboards are held to their labels


def test_two_runs_of_a_process_show_their_own_counts(free_port: int) -> None:
    other = replace(STATUS, application_id="bank")
    with (
        metrics_endpoint(Settings(metrics_port=free_port), lambda: STATUS, lambda: LAG),
        metrics_endpoint(Settings(metrics_port=free_port, metrics_host="127.0.0.2"), lambda: other, lambda: LAG),
        urlopen(f"http://127.0.0.2:{free_port}/metrics", timeout=120) as response,
    ):
        text = response.read().decode()
        assert {name[1] for name in scraped(free_port)} == {"shop"}
    assert 'application="bank"' in text and "shop" not in text


def test_a_port_in_use_is_refused_with_its_name(free_port: int) -> None:
    with (
        metrics_endpoint(Settings(metrics_port=free_port), lambda: STATUS, lambda: LAG),
        pytest.raises(ConfigError, match=f"'metrics_port': port {free_port} of 127.0.0.1 cannot be opened.*another"),
        metrics_endpoint(Settings(metrics_port=free_port), lambda: STATUS, lambda: LAG),
    ):
        pass


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with (
        pytest.raises(MissingPackageError, match=r"'metrics_port' needs .*pip install '.*\[metrics\]'"),
        metrics_endpoint(Settings(metrics_port=9464), lambda: STATUS, lambda: LAG),
    ):
        pass
    for port in (None, 0):
        with metrics_endpoint(Settings(metrics_port=port), lambda: STATUS, lambda: LAG):
            pass


@pytest.mark.parametrize(("path", "code"), [("/", 200), ("/metrics", 200), ("/healthz", 404), ("/metrics/live", 404)])
def test_a_misspelt_path_is_not_found(free_port: int, path: str, code: int) -> None:
    """A probe of one would find every application well."""
    with metrics_endpoint(Settings(metrics_port=free_port), lambda: STATUS, lambda: LAG):
        try:
            with urlopen(f"http://127.0.0.1:{free_port}{path}", timeout=120) as response:
                found = response.status
        except HTTPError as error:
            found = error.code
    assert found == code


def test_reasons_and_counters_that_a_processor_makes_up_are_bounded() -> None:
    made_up = {f"key {number}": number + 1 for number in range(1_000)}
    status = replace(STATUS, nodes={"count": {"in": 0, "out": 0, "dropped": made_up, "user": made_up}})
    families = {family.name: family for family in RunCollector(lambda: status, lambda: LAG).collect()}
    for name in ("penstock_node_records_dropped", "penstock_node_user"):
        assert len(families[name].samples) == 51
        assert sum(sample.value for sample in families[name].samples) == sum(made_up.values())


def test_no_counter_falls_when_another_becomes_larger() -> None:
    """Prometheus takes a counter that falls for one that began anew, and counts it again."""
    before: dict[tuple[str, ...], float] = {}
    counted = DetailedCounts()
    for number in range(30):
        made_up = {"key 59": 1} if number else {f"key {each}": 100 - each for each in range(60)}
        node = {"in": 0, "out": 0, "dropped": made_up, "user": made_up}
        counted += DetailedCounts(nodes={"count": node})
        status = replace(STATUS, nodes=counted.nodes)
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in RunCollector(lambda: status, lambda: LAG).collect()  # noqa: B023
            for sample in family.samples
            if family.type == "counter"
        }
        fallen = {each: (value, found.get(each)) for each, value in before.items() if found.get(each, 0.0) < value}
        assert not fallen
        before = found
