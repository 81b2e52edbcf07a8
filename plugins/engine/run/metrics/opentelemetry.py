"""OpenTelemetryReporter: sends the metrics of a run by OTLP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from penstock import HISTOGRAM_BOUNDS, Measure, MeasureKind, MetricsReporter, Settings
from penstock.support.packages import check_installed, needed

_REPORTER = "metrics reporter 'opentelemetry'"
_NANOSECONDS = 1_000_000

# When the reporter is looked up: before a start changes anything.
check_installed(_REPORTER, "opentelemetry", "opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk")


class OpenTelemetryReporter(MetricsReporter):
    """Sends the metrics of one run over HTTP, to where OpenTelemetry's variables say.

    The counts are the run's own, so they go to the exporter as they are, without instruments of OpenTelemetry's beside
    them. Raises MissingPackageError when OpenTelemetry's exporter is not installed.
    """

    def __init__(self, application_id: str, settings: Settings) -> None:
        with needed(_REPORTER, "opentelemetry"):
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.resources import Resource
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": application_id}
        self._resource = Resource.create(named)
        self._exporter = OTLPMetricExporter()

    def report(self, measures: Sequence[Measure], started_ms: int, now_ms: int) -> None:
        """Send them. Raises ConnectionError when that failed."""
        from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        since, now = started_ms * _NANOSECONDS, now_ms * _NANOSECONDS
        metrics = [_metric(measure, since, now) for measure in measures if measure.samples]
        scope = ScopeMetrics(InstrumentationScope("penstock"), metrics, "")
        result = self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        if result is not MetricExportResult.SUCCESS:
            raise ConnectionError("the exporter could not send the metrics; its log line says why")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


def _metric(measure: Measure, since: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, Metric, NumberDataPoint, Sum

    points: list[Any] = []
    for values, value in measure.samples:
        labels = dict(zip(measure.labels, values, strict=True))
        if isinstance(value, Sequence):
            points.append(_distribution(labels, value, since, now))
        else:
            points.append(NumberDataPoint(labels, since, now, float(value)))
    total = AggregationTemporality.CUMULATIVE
    data: Any = Gauge(points)
    if measure.kind is MeasureKind.COUNTER:
        data = Sum(points, total, is_monotonic=True)
    elif measure.kind is MeasureKind.HISTOGRAM:
        data = Histogram(points, total)
    return Metric(measure.name, measure.text, "", data)


def _distribution(labels: dict[str, str], value: Sequence[float], since: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    counts = [int(each) for each in value[1:]]
    unknown: Any = None  # of the lowest and the highest time
    return HistogramDataPoint(
        labels, since, now, sum(counts), value[0], counts, list(HISTOGRAM_BOUNDS), unknown, unknown
    )
