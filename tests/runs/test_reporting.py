"""Reporters of metrics: what they get, when they fail, and OpenTelemetry's over HTTP."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigError, Measure, MeasureKind, MetricsReporter, MissingPackageError, PluginError, run
from penstock.hooks import Component, registry

from ..spark import apps
from ..spark.surroundings import Surroundings


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 2, "out": 2})
        made.put("in", [(f"k{number}", "v", number) for number in range(10)])
        yield made


class Kept(MetricsReporter):
    """Keeps the last report."""

    measures: dict[str, Measure]
    closed = 0

    def __init__(self, application_id: str, settings: Any) -> None:
        assert application_id == "app"

    def report(self, measures: Sequence[Measure], started_ms: int, now_ms: int) -> None:
        assert 0 < started_ms <= now_ms
        Kept.measures = {each.name: each for each in measures}

    def close(self) -> None:
        Kept.closed += 1


class Fails(Kept):
    def report(self, measures: Sequence[Measure], started_ms: int, now_ms: int) -> None:
        raise ValueError("of the reporter")


@pytest.fixture
def reporters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, made in (("acme.kept", Kept), ("acme.fails", Fails)):
        component = Component("metrics reporter", name, made, "acme", "acme", "1.0")
        monkeypatch.setitem(registry().components, ("metrics reporter", name), component)


def test_a_reporter_gets_all_of_a_run(
    surroundings: Surroundings, reporters: None, caplog: pytest.LogCaptureFixture
) -> None:
    before = Kept.closed
    given = surroundings.application("app", apps.count(), engine="embedded", metrics_reporters="acme.fails, acme.kept")
    with caplog.at_level(logging.WARNING):
        run(given)
    found = Kept.measures["penstock_task_records_in"]
    assert found.kind is MeasureKind.COUNTER and list(found.labels) == ["application", "task"]
    assert sum(value for _, value in found.samples if isinstance(value, (int, float))) == 10
    assert Kept.measures["penstock_record_latency_seconds"].kind is MeasureKind.HISTOGRAM
    assert Kept.closed == before + 1
    assert "application 'app': metrics reporter 'acme.fails' raised ValueError: of the reporter" in caplog.text


def test_wrong_names_are_refused(surroundings: Surroundings) -> None:
    with pytest.raises(PluginError, match="'metrics_reporters'.*no metrics reporter named 'nothing' is installed"):
        surroundings.application("app", apps.count(), metrics_reporters="nothing")
    with pytest.raises(ConfigError, match="'metrics_reporters': expected names of metrics reporters"):
        surroundings.application("app", apps.count(), metrics_reporters=7)


class _Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.bodies.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), _Collector) as server:
        server.bodies = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_opentelemetry_gets_every_metric(
    surroundings: Surroundings, collector: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = pytest.importorskip(
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason="needs penstock[opentelemetry]"
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    run(surroundings.application("app", apps.count(), engine="embedded", metrics_reporters="opentelemetry"))
    path, body = collector.bodies[-1]  # type: ignore[attr-defined]
    assert path == "/v1/metrics"
    (resource,) = service.ExportMetricsServiceRequest.FromString(body).resource_metrics
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] == "app"
    metrics = {each.name: each for scope in resource.scope_metrics for each in scope.metrics}
    records = metrics["penstock_task_records_in"].sum
    assert records.is_monotonic and sum(each.as_double for each in records.data_points) == 10
    (latency,) = metrics["penstock_record_latency_seconds"].histogram.data_points
    assert latency.count == sum(latency.bucket_counts) == 10 and not latency.HasField("max")
    assert len(latency.bucket_counts) == len(latency.explicit_bounds) + 1
    assert {each.key for each in latency.attributes} == {"application", "subtopology"}


def test_without_opentelemetry_the_start_says_what_to_install(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    given = surroundings.application("app", apps.count(), engine="embedded", metrics_reporters="opentelemetry")
    with pytest.raises(MissingPackageError, match=r"pip install '.*\[opentelemetry\]'"):
        run(given)
