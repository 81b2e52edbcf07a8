"""RunCollector: the metrics of a run as Prometheus' client has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from penstock import HISTOGRAM_BOUNDS, Measure, MeasureKind
from penstock.plugins.engine.program.lag import PartitionLag
from penstock.plugins.engine.program.run_status import RunStatus
from penstock.support.packages import needed

from .reporting import measures_of

with needed("setting 'metrics_port'", "metrics"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

_BOUNDS = [*map(str, map(float, HISTOGRAM_BOUNDS)), "+Inf"]


class RunCollector(Collector):
    """Makes metrics from `status` and `lag` at each scrape."""

    def __init__(self, status: Callable[[], RunStatus], lag: Callable[[], Sequence[PartitionLag]]) -> None:
        self._status = status
        self._lag = lag

    def collect(self) -> Iterator[Metric]:
        return map(_family, measures_of(self._status(), self._lag()))


def _family(measure: Measure) -> Metric:
    if measure.kind is MeasureKind.HISTOGRAM:
        return _histogram(measure)
    kind = CounterMetricFamily if measure.kind is MeasureKind.COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(measure.name, measure.text, labels=measure.labels)
    for labels, value in measure.samples:
        assert not isinstance(value, Sequence)
        family.add_metric(labels, value)
    return family


def _histogram(measure: Measure) -> Metric:
    family = HistogramMetricFamily(measure.name, measure.text, labels=measure.labels)
    for labels, data in measure.samples:
        assert isinstance(data, Sequence)
        family.add_metric(labels, list(zip(_BOUNDS, accumulate(data[1:]), strict=True)), data[0])
    return family
