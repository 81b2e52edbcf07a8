"""Running: the handle of an application that was started in this process; what it shows, and who gets its metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Protocol

from ..record import TopicPartition


class Summary(Protocol):
    """The finished work of a run, on any engine; all records are committed ones.

    The engines that come with penstock return `penstock.spark.RunSummary`, which has more.
    """

    @property
    def application_id(self) -> str:
        """The application's id."""
        ...

    @property
    def records_in(self) -> int:
        """How many records were processed."""
        ...

    @property
    def records_out(self) -> int:
        """How many records were written to topics, internal ones included."""
        ...

    @property
    def dropped(self) -> int:
        """How many records were dropped, for any reason."""
        ...

    @property
    def commits(self) -> int:
        """How many commits the tasks made."""
        ...

    @property
    def restored(self) -> int:
        """How many records of state were restored from changelogs."""
        ...

    @property
    def openings(self) -> Mapping[str, int]:
        """How often tasks were opened, by reason, such as "first" or "host lost"."""
        ...

    @property
    def workers_lost(self) -> int:
        """How many task hosts were lost and replaced."""
        ...

    @property
    def lag(self) -> int:
        """Offsets between committed positions and the ends of the topics, internal ones included."""
        ...

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        ...

    @property
    def nodes(self) -> Mapping[str, Mapping[str, Any]]:
        """For each node `in` and `out`, numbers of records, and `dropped`, such numbers by reason."""
        ...

    @property
    def phases(self) -> Mapping[str, float]:
        """The seconds of each phase, added up over all tasks."""
        ...

    @property
    def seconds(self) -> float:
        """How long the run took."""
        ...

    @property
    def stopped_by(self) -> str | None:
        """A signal's name, or "stop" when the caller asked; None when everything was processed."""
        ...


class Progress(Summary, Protocol):
    """The work of a run so far; the argument of `on_progress`. `penstock.spark.RunProgress` has more."""

    @property
    def records_per_second(self) -> float:
        """Records processed a second, lately."""
        ...

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The committed positions."""
        ...

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """The offsets after the last records of the topics."""
        ...


@dataclass(frozen=True)
class StateChange:
    """A change of a run's state, which the setting `state_listener` is called with.

    `before` and `state` are states of `Running.state`.
    """

    application_id: str
    before: str
    state: str


class Running(Protocol):
    """A run in a thread of this process. Leaving its `with` or `async with` block stops it.

    Entering the block waits until the tasks begin to run, or raises the error that prevented it. Leaving it raises the
    error that the application failed with, unless the block itself failed.
    """

    @property
    def state(self) -> str:
        """Return "starting", "rebalancing", "running", "stopping", "stopped" or "failed".

        "rebalancing": the application is prepared, and not all of its tasks are open; "running": all are.
        """
        ...

    @property
    def error(self) -> BaseException | None:
        """The error that ended the run; None while it runs, and when it ended without one."""
        ...

    def store(self, name: str, *, isolation: str = "read_committed", **options: Any) -> Any:
        """Return a store of the tasks on this machine, to be read at committed versions until the run ends.

        What it returns has the reading half of the store's kind, such as ReadOnlyKeyValueStore. `options`, and
        `isolation`, of which there is only "read_committed", are those of `penstock.queries.Queries.store`. Raises
        ConfigError for a store that the program does not have, RuntimeUnavailableError after the end of the run, and
        LogError.
        """
        ...

    @property
    def paused(self) -> frozenset[int]:
        """The numbers of the sub-topologies of which no task processes records any more."""
        ...

    def pause(self, *subtopologies: int) -> None:
        """Process no more records of these sub-topologies, or of any, until `resume`; returns before that has effect.

        Tasks stay open, commit what they have processed, and call no punctuators. It is a note in the log: a run that
        is started later is paused, too. Raises ConfigError for a number that the program does not have, and LogError.
        """
        ...

    def resume(self, *subtopologies: int) -> None:
        """End the pause of these sub-topologies, or of all. Raises as `pause`."""
        ...

    def wait(self, timeout: float | None = None) -> Summary:
        """Wait until the run ends by itself, or is stopped; return its summary.

        Raises the error that the application failed with, and TimeoutError after `timeout` seconds.
        """
        ...

    def stop(self, timeout: float | None = None) -> Summary:
        """Let tasks commit, stop the run, and return its summary; again, it changes nothing. Raises as `wait`."""
        ...

    def __enter__(self) -> Running: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def __aenter__(self) -> Running: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


# ---------------------------------------------------------------- metrics

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
