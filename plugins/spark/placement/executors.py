"""SparkExecutors: the executors of a cluster as Spark's driver sees them, and when late ones are worth a new start."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..session.sessions import is_cluster
from .slot_owners import Executor

if TYPE_CHECKING:
    from pyspark import SparkContext

DECOMMISSIONED = "executor decommissioned"
EXCLUDED = "executor excluded by Spark"

_LEAST_SECONDS, _MOST_SECONDS = 1.0, 2.0
_SHARE_OF_TIME = 0.01
_STEADY_SECONDS, _LONGEST_STEADY_SECONDS = 5.0, 320.0
_FIRST_EXECUTOR_SECONDS, _EXPECTED_EXECUTORS_SECONDS, _START_SECONDS = 10.0, 30.0, 1.0

_log = logging.getLogger("penstock.spark")


class SparkExecutors:
    """Asks the driver's JVM which executors there are.

    A look is a few calls. More follow only when executors came or went, or when `look_closely` was called because a
    slot was placed elsewhere. So an idle application costs the driver next to nothing, with any number of executors.
    """

    def __init__(self, context: SparkContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._spark: Any = context._jsc.sc()
        self._clock = clock
        self._next_look = 0.0
        self._ids = ""
        self._unfit = 0
        self._look_closely = False

    def look_closely(self) -> None:
        """Let the next look ask about each executor."""
        self._look_closely = True

    def poll(self) -> Mapping[str, Executor] | None:
        """Return the executors by id, if something may have changed; None otherwise, and before the next look is due.

        It looks about once a second; where a look takes long, less often, but at least every two seconds: a busy
        machine makes a single look slow, and tasks of a lost executor wait for the next one.
        """
        began = self._clock()
        if began < self._next_look:
            return None
        try:
            return self._look()
        finally:
            ended = self._clock()
            self._next_look = ended + max(_LEAST_SECONDS, min(_MOST_SECONDS, (ended - began) / _SHARE_OF_TIME))

    def _look(self) -> Mapping[str, Executor] | None:
        ids = str(self._spark.getExecutorIds().mkString("\n"))
        unfit = int(self._spark.schedulerBackend().executorsPendingDecommission().size())
        if (ids, unfit) == (self._ids, self._unfit) and not self._look_closely:
            return None
        if not ids and not self._ids:
            # Before the first executor; and a scheduler that does not name its executors.
            return None
        found = self._details(ids.split("\n") if ids else [], self._ids.split("\n"))
        if found is not None:
            self._ids, self._unfit, self._look_closely = ids, unfit, False
        return found

    def _details(self, ids: list[str], before: list[str]) -> Mapping[str, Executor] | None:
        """Return the executors by Spark's account; None while its status store does not know all of them yet.

        One of `before` that has ended after it was decommissioned is included: an idle one ends at once.
        """
        scheduler, store = self._spark.taskScheduler(), self._spark.statusStore()
        known: dict[str, Any] = {}
        gone = sorted(set(before) - set(ids))
        summaries = store.executorList(not gone)
        for index in range(summaries.size()):
            summary = summaries.apply(index)
            known[summary.id()] = summary
        executors = {}
        for each in ids:
            if each not in known:
                return None
            summary = known[each]
            is_leaving = scheduler.getExecutorDecommissionState(each).isDefined()
            unfit = DECOMMISSIONED if is_leaving else EXCLUDED if summary.isExcluded() else ""
            executors[each] = Executor(int(summary.totalCores()), unfit)
        for each in gone:
            if each in known and _was_decommissioned(known[each]):
                executors[each] = Executor(0, DECOMMISSIONED)
        return executors


def _was_decommissioned(summary: Any) -> bool:
    reason = summary.removeReason()
    return bool(reason.isDefined()) and "decommission" in str(reason.get()).lower()


class LateExecutors:
    """Says when a new start is worth its price, because the executors have changed and stay so for some seconds.

    Executors often come one after the other, so each new start doubles these seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steady = _STEADY_SECONDS
        self._since: float | None = None
        self._executors: Mapping[str, Executor] = {}

    def note(self, executors: Mapping[str, Executor]) -> None:
        """Note the executors; their time begins anew if they are others than before."""
        if executors != self._executors:
            self._executors = dict(executors)
            self._since = self._clock()

    def is_due(self) -> bool:
        """Return, once for each change, whether the executors have been the same for long enough."""
        if self._since is None or self._clock() - self._since < self._steady:
            return False
        self._since = None
        return True

    def started_again(self) -> None:
        """Note that they were worth a new start."""
        self._steady = min(2 * self._steady, _LONGEST_STEADY_SECONDS)


def wait_for_executors(context: SparkContext) -> None:
    """On a cluster, wait until the executors that are expected are there, so that the first layout can stay.

    On YARN and Kubernetes the configuration may say how many are expected. Elsewhere: until none has come for a second.
    """
    if not is_cluster(context.master):
        return
    spark: Any = context._jsc.sc()
    expected = expected_executors(context.master, dict(context.getConf().getAll()))
    began = last_change = time.monotonic()
    count = 0
    while True:
        found = int(spark.getExecutorIds().size())
        now = time.monotonic()
        if found != count:
            count, last_change = found, now
        longest = _EXPECTED_EXECUTORS_SECONDS if expected else _FIRST_EXECUTOR_SECONDS
        is_complete = count >= expected if expected else count > 0 and now - last_change >= _START_SECONDS
        if is_complete or now - began > longest:
            break
        time.sleep(0.1)
    if count < expected:
        _log.warning("Spark has %d of the %d executors that it was told to start: starting with them", count, expected)


def expected_executors(master: str | None, configuration: Mapping[str, str]) -> int:
    """Return how many executors the cluster will start; 0 if it is not known."""
    if not (master or "").startswith(("yarn", "k8s")):
        return 0
    is_dynamic = configuration.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    name = "spark.dynamicAllocation.minExecutors" if is_dynamic else "spark.executor.instances"
    return int(configuration.get(name, "0"))
