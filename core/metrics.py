"""MetricsReporter: gets the metrics of a run every few seconds, to send them to any metrics system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

HISTOGRAM_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 600, 3600)
"""Upper bounds (seconds, included) of the buckets of histograms; there is one bucket more, without a bound."""


class MeasureKind(Enum):
    """What a value of a metric is: a sum since the start of the run, a value now, or a distribution."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Measure:
    """A metric with all its samples: values with the values of their labels, in the order of `labels`.

    The first label is `application`. A value of a histogram is the sum of its seconds, and then the count of each
    bucket. The name of a counter has no `_total`.
    """

    name: str
    kind: MeasureKind
    text: str
    labels: Sequence[str]
    samples: Sequence[tuple[Sequence[str], float | Sequence[float]]]


class MetricsReporter(ABC):
    """Sends the metrics of one run somewhere. One thread calls all methods; it is not that of the run."""

    @abstractmethod
    def report(self, measures: Sequence[Measure], started_ms: int, now_ms: int) -> None:
        """Take the metrics as they are now (ms); counters began at `started_ms`. What it raises is logged."""

    def close(self) -> None:  # noqa: B027 (few need it)
        """End; called after the last report."""
