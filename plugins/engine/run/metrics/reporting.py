"""reporting: hands the metrics of a run to the reporters of the setting `metrics_reporters`, every few seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from penstock import Application, MetricsReporter, SystemClock, duration_ms
from penstock.hooks import registry
from penstock.plugins.engine.program.lag import PartitionLag
from penstock.plugins.engine.program.run_status import RunStatus
from penstock.support.repeats import Repeats

from ..companion import Companion
from ..settings import METRICS_INTERVAL, METRICS_REPORTERS, reporter_names
from .measures import measures_of

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
    """Report what `status` and `lag` return until the end of the block, and once more then.

    Raises what a reporter raises when it is made.
    """
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


class _Reports:
    """The thread that reports."""

    def __init__(
        self,
        application_id: str,
        reporters: dict[str, MetricsReporter],
        seconds: float,
        status: Callable[[], RunStatus],
        lag: Callable[[], Sequence[PartitionLag]],
    ) -> None:
        self._application_id = application_id
        self._reporters = reporters
        self._seconds = seconds
        self._status = status
        self._lag = lag
        self._repeats = Repeats(SystemClock().now_ms)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-metrics-reporters", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(self._seconds)
            try:
                status = self._status()
                measures = list(measures_of(status, self._lag()))
            except Exception as error:  # the next report follows
                self._repeats.log(
                    _log, logging.ERROR, None, "application %r: its metrics cannot be made: %r", self._application_id,
                    error,
                )  # fmt: skip
                continue
            for name, reporter in self._reporters.items():
                try:
                    reporter.report(measures, status.started_ms, status.written_ms)
                    if is_last:
                        reporter.close()
                except Exception as error:
                    self._repeats.log(
                        _log, logging.WARNING, name, "application %r: metrics reporter %r raised %s: %s",
                        self._application_id, name, type(error).__name__, error,
                    )  # fmt: skip
        self._repeats.write_rest()

    def close(self) -> None:
        """Report once more, and close the reporters; do not wait long for one that hangs."""
        self._ended.set()
        self._thread.join(_LAST_SECONDS)
