"""In Spark's workers: the proxy that hands a slot's batch to its task host, and the counts that rows have."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import Commit, ConfigError
from penstock.plugins.engine.host.claims import Claims, SlotLayout, owner_elsewhere
from penstock.plugins.engine.host.client import HostClient, HostSpec, end_hosts, nothing
from penstock.plugins.engine.host.executor_identity import LOCAL_EXECUTOR, ExecutorIdentity, describe, executor_identity
from penstock.plugins.engine.host.log_lines import log_to_driver
from penstock.plugins.engine.host.place import LEASE_SECONDS, ProcessId, digest_of, started_at
from penstock.plugins.engine.host.reports import (
    STUCK,
    Observed,
    SlotMessage,
    SlotPlan,
    TaskFailure,
    offsets_from_json,
    offsets_to_json,
)
from penstock.plugins.engine.host.slot_engine import SlotCargo, SlotRequest
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.shipping import check_packages, packages_of

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.state import GroupState


OBSERVED = "penstock"
"""The name of the metrics: `lastProgress.observedMetrics["penstock"]`."""
_SUMMED = ("records_in", "records_out", "dropped", "commits", "restored", "lag", "state_rows")
COUNTS_SCHEMA = f"{', '.join(f'{name} long' for name in _SUMMED)}, counters map<string, long>"
COUNTS = "counts"
"""The column of an operator in which a row of counts has them, as JSON; null in its rows of results."""
OUTPUT_SCHEMA = f"message string, {COUNTS_SCHEMA}"
STATE_SCHEMA = "commits string"
_HEARD = "heard"
"""Beside the tasks in a slot's state: the token of the slot's host, and the number of its last message with reports."""
_SUSPECT_SECONDS = 8.0
"""Seconds in which a host must give a sign of life that sends no heartbeats; longer than the five between two signs."""

_tasks = 0


class WorkerFunction:
    """A function that PySpark's workers call: where a task begins, it arrives there, and calls `begin_task`."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__  # `__setstate__` is called for an empty one, too

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        begin_task()


def begin_task() -> None:
    """Reduce the cost of garbage collection in a reused worker of Spark. Does nothing outside a task.

    Spark's worker runs a full collection after each task; with the modules of pandas and pyarrow one takes 40 ms. After
    the 2nd, 4th, 8th, ... task, right behind such a collection, all live objects are frozen: later collections skip
    them. So modules imported later are skipped, too. Garbage in frozen cycles is never freed, but its amount does not
    grow with the number of tasks.
    """
    global _tasks
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    _tasks += 1
    if _tasks == 1:
        use_system_allocator()
    elif _tasks & (_tasks - 1) == 0:
        gc.freeze()


def use_system_allocator() -> None:
    """Take the memory of Arrow data from the system's allocator, unless the environment names another one.

    A worker with pyarrow's own allocator takes 10 MB more, and is no faster. Called before pyarrow is imported, it is
    for what Arrow does inside, too: pyarrow reads the variable when it is imported.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" in os.environ:
        return
    if "pyarrow" not in sys.modules:
        os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
        return
    import pyarrow

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())


def release_memory() -> None:
    """Give back to the system what Arrow does not need any more: a process waits as long as others work."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()


@dataclass(eq=False)
class BatchFunction(WorkerFunction):
    """The function for applyInPandasWithState: one group for each slot.

    `layout`: None where Spark has one executor, which runs every attempt. `log_directory`, `log_level`: see SlotCargo.
    """

    hosts: HostCaller
    application_id: str
    layout: SlotLayout | None
    log_directory: str
    log_level: int

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the host start while Spark's worker still imports pandas: that takes as long."""
        super().__setstate__(state)
        from pyspark import TaskContext

        context = TaskContext.get()
        # On a cluster the slot may belong to another executor.
        if context is not None and (identity := executor_identity()).executor == LOCAL_EXECUTOR:
            self.hosts.client(context.partitionId(), identity).begin("first")

    def __call__(
        self, key: tuple[int], frames: Iterator[pandas.DataFrame], state: GroupState
    ) -> Iterator[pandas.DataFrame]:
        """Run one slot's batch: one row of `source.SCHEMA` in, one message out.

        The state keeps the last commits, and which message Spark has: it takes both in one step.
        """
        import pandas

        plan = next(SlotPlan.from_json(text) for frame in frames for text in frame["plan"])
        saved: dict[str, list[Any]] = json.loads(state.get[0]) if state.exists else {}
        message = self.run(plan, saved)
        if (following := saved_after(saved, message)) != saved:
            state.update((json.dumps(following, separators=(",", ":")),))
        observed = message.observed or Observed.of(message, plan, commits_in(saved))
        yield pandas.DataFrame([{"message": message.to_json(), **counts_row(observed)}])

    def run(self, plan: SlotPlan, saved: Mapping[str, list[Any]]) -> SlotMessage:
        """Hand the batch to the slot's host, if the slot belongs to this executor. `saved` is the slot's state.

        An error is returned in the message. Otherwise Spark would repeat the batch, which does not help, and would wrap
        the error in its own.
        """
        identity = executor_identity()
        logs = log_to_driver(Path(self.log_directory), self.log_level)
        token, number = saved.get(_HEARD, ("", 0))
        client = self.hosts.client(plan.slot, identity)
        try:
            self.hosts.check(identity)
            owner = self._owner_elsewhere(plan, identity.text, client)
            if owner:
                return SlotMessage(plan.slot, identity.text, elsewhere=owner, planned=plan.owner)
            suspect, _, process = plan.suspect.partition(" ")
            if suspect == STUCK:
                client.close()
                end_hosts([client.spec.key], "its tasks have made no turn for too long", int(process))
            message: SlotMessage = client.call(
                SlotRequest(plan, commits_in(saved), identity.text, (token, number)),
                reason="host lost" if plan.owner == identity.text else "first",
                silent_seconds=_SUSPECT_SECONDS if plan.suspect else None,
            )
        except Exception as error:
            failure = TaskFailure.of_slot(self.application_id, plan.slot, error)
            message = SlotMessage(plan.slot, identity.text, failure=failure)
        lines = message.lines + logs.take()
        return replace(message, lines=lines, losses=client.take_losses(), planned=plan.owner)

    def _owner_elsewhere(self, plan: SlotPlan, own: str, client: HostClient) -> str:
        """Return the executor to which this one must leave the slot; "" if there is none.

        Where nobody has the slot, its host starts while the log is asked for a claim.
        """
        from pyspark import TaskContext

        layout, context = self.layout, TaskContext.get()
        if layout is None or context is None:
            return ""
        with ExitStack() as stack:

            def claims() -> Claims:
                cargo: SlotCargo = pickle.loads(self.hosts.cargo)
                log = open_log(cargo.application.settings)
                stack.callback(log.close)
                return Claims(log, self.application_id, layout)

            attempt = context.attemptNumber()
            if not plan.owner and attempt == 0:
                client.begin("first")
            return owner_elsewhere(plan.slot, plan.owner, own, attempt, claims, wait_seconds=layout.wait_seconds)


def commits_in(saved: Mapping[str, list[Any]]) -> dict[str, Commit]:
    """Return the last commits of a slot's tasks in its state."""
    commits = ((task, *each) for task, each in saved.items() if task != _HEARD)
    return {task: Commit(offsets_from_json(positions), version) for task, version, positions in commits}


def saved_after(saved: Mapping[str, list[Any]], message: SlotMessage) -> dict[str, list[Any]]:
    """Return the state of a slot after a batch with this message."""
    reports = [each.report for each in message.results if each.report is not None]
    commits = {report.task_id: [report.version, offsets_to_json(report.positions)] for report in reports}
    if message.host is not None and message.number and (reports or message.kept):
        return {**saved, **commits, _HEARD: [message.host.token, message.number]}
    return {**saved, **commits}


_clients: dict[tuple[str, str], HostClient] = {}
"""This process's connections to hosts, by their keys and digests."""


class HostCaller:
    """Reaches the task hosts of an executor, for a group function.

    `cargo` is a pickled `Cargo`. `family` is a digest of what all hosts of a query have in common: two queries, or two
    applications on one executor, do not share hosts. `title` names them for people. `lease_seconds`: see `HostSpec`.
    """

    def __init__(self, cargo: bytes, family: str, title: str, lease_seconds: float = LEASE_SECONDS) -> None:
        self.cargo = cargo
        self.family = family
        self.title = title
        self.lease_seconds = lease_seconds
        self.packages = tuple(packages_of(cargo).items())
        self.digest = hashlib.sha256(cargo).hexdigest()

    def check(self, identity: ExecutorIdentity) -> None:
        """Raise RuntimeUnavailableError if this executor's machine has other versions of the program's packages."""
        check_packages(self.packages, describe(identity.text))

    def client(self, slot: int, identity: ExecutorIdentity, scope: str = "") -> HostClient:
        """Return this process's connection to the host of a slot. Hosts of different scopes are not the same."""
        key = host_key(self.family, identity.text, slot, scope)
        found = _clients.get((key, self.digest))
        pids = [each for each in (identity.process, identity.daemon) if each is not None]
        if found is None or [each.pid for each in found.spec.watched] != pids:
            # A daemon that has ended took its hosts with it; the next ones watch the JVM alone.
            names = ("the executor's JVM", "PySpark's daemon")
            watched = tuple(ProcessId(pid, started_at(pid), name) for pid, name in zip(pids, names, strict=False))
            if found is not None:
                found.close()
            found = HostClient(
                HostSpec(
                    key,
                    slot,
                    self.digest,
                    self.cargo,
                    self.title,
                    watched,
                    scope,
                    _set_up_for_spark(),
                    self.lease_seconds,
                )
            )
            _clients[key, self.digest] = found
        return found


def _set_up_for_spark() -> Callable[[], None]:
    """Return a function that lets `SparkFiles.get` work in a host; it imports PySpark only if there are files."""
    from pyspark import SparkFiles

    root = SparkFiles._root_directory
    if root is None or not SparkFiles._is_running_on_worker or not os.listdir(root):
        return nothing
    return partial(use_spark_files, root)


def use_spark_files(root: str) -> None:
    """Let `SparkFiles` find its files in `root`, as in one of Spark's workers."""
    from pyspark import SparkFiles

    SparkFiles._root_directory, SparkFiles._is_running_on_worker = root, True


def host_key(family: str, executor: str, slot: int, scope: str = "") -> str:
    """Return the key of a slot's host on an executor (see `Place`)."""
    return digest_of(family, executor, str(slot), scope)


def counts_row(observed: Observed) -> dict[str, Any]:
    """Return a row of `COUNTS_SCHEMA`."""
    counts = observed.counts
    of_counts = {name: getattr(counts, name) for name in _SUMMED if hasattr(counts, name)}
    return {**of_counts, "lag": observed.lag, "state_rows": observed.state_rows, "counters": observed.counters()}


def sums(within: str = "") -> list[Column]:
    """Return the sums of counts in rows of `COUNTS_SCHEMA`. `within`: the prefix of its columns, such as "counts."."""
    from pyspark.sql import functions as f

    counters = f.aggregate(
        f.collect_list(f"{within}counters"),
        f.create_map().cast("map<string, long>"),
        lambda one, other: f.map_zip_with(
            one, other, lambda _, left, right: f.coalesce(left, f.lit(0)) + f.coalesce(right, f.lit(0))
        ),
    )
    return [*(f.sum(f"{within}{name}").alias(name) for name in _SUMMED), counters.alias("counters")]


def observed(rows: DataFrame) -> DataFrame:
    """Return an operator's rows, whose counts are observed as they pass.

    Raises ConfigError for rows that come from another operator: Spark allows one in a query.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import from_json

    parsed = rows.withColumn(COUNTS, from_json(COUNTS, COUNTS_SCHEMA))
    try:
        return parsed.observe(OBSERVED, *sums(f"{COUNTS}."))
    except AnalysisException as error:
        if error.getCondition() != "DUPLICATED_METRICS_NAME":
            raise
        raise ConfigError(
            "the rows of `sources` come from another transform, or are observed by the name 'penstock': Spark allows "
            "one such operator in a query. Combine the two topologies; or write the rows of the first to a table or a "
            "topic, and read that in a second query"
        ) from error


def without_counts(rows: DataFrame) -> DataFrame:
    """Return an operator's rows of results."""
    from pyspark.sql.functions import col

    return rows.where(col(COUNTS).isNull()).drop(COUNTS)
