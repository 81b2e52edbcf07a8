"""ApplicationQuery: one Spark streaming query that runs an application, started, watched and stopped."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import IncompatibleStateError, Lease, Log, PenstockError, Settings
from penstock.plugins.engine.host import claims
from penstock.plugins.engine.host.application_engine import ApplicationEngine
from penstock.plugins.engine.host.claims import Claims, SlotLayout
from penstock.plugins.engine.host.client import end_hosts
from penstock.plugins.engine.host.continuous_engine import ContinuousEngine
from penstock.plugins.engine.host.executor_identity import find_identity, system_processes
from penstock.plugins.engine.host.log_lines import HostLogReader, level_here
from penstock.plugins.engine.host.place import LEASE_SECONDS, digest_of
from penstock.plugins.engine.host.reports import SlotMessage, TaskFailure
from penstock.plugins.engine.host.slot_engine import OpensCompanion, SlotCargo
from penstock.plugins.engine.program.checkpoint_files import (
    checkpoint_location,
    checkpoint_writable,
    not_deleted,
    pointer_directory,
)
from penstock.plugins.engine.program.preparation import Prepared
from penstock.plugins.engine.run.order import Trigger
from penstock.plugins.engine.run.planning import renewals
from penstock.plugins.engine.run.planning.control import Control, ControlFile, LogFile, PlannedApplication
from penstock.plugins.engine.run.progress import EndedBatch
from penstock.plugins.engine.run.query import HostMessages, Query
from penstock.plugins.engine.run.settings import UNCAUGHT_EXCEPTION_HANDLER
from penstock.plugins.engine.run.slots import Slots, slots
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.plugins.state.copies.companions import HostStandbys
from penstock.plugins.state.copies.settings import NUM_STANDBY_REPLICAS, RACKS
from penstock.plugins.state.queries.run_server import opens_machine_server
from penstock.support.private_files import make_private_directory, write_private_text
from penstock.support.repeats import Repeats
from penstock.task.visits import Visit

from .interpreter import SparkFailure, cause_in, explain
from .placement import LateExecutors, SlotPlacement
from .planner_watch import PlannerWatch
from .sessions import is_cluster, tune
from .settings import PARALLELISM
from .watching import Beats, NotedServers, Stops
from .worker import OBSERVED, OUTPUT_SCHEMA, STATE_SCHEMA, BatchFunction, HostCaller, host_key, sums

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_log = logging.getLogger("penstock.spark")


class ApplicationQuery(Query):
    """The query of a prepared application.

    `control` is read by its source; `poll` returns its workers' reports. With `clock_ms` and `step` the caller sets the
    source's clock and steps (see Control). `is_continuous`: hosts work on their own, and batches only renew their
    leases. `repeats` writes log lines that may come again and again; it outlives the query. `server`: the URL of the
    driver's server of queries; on a cluster each machine has one as well then, which are noted under `lease`.
    """

    def __init__(
        self,
        session: SparkSession,
        prepared: Prepared,
        log: Log,
        late: LateExecutors,
        repeats: Repeats,
        *,
        clock_ms: int | None = None,
        step: int | None = None,
        is_continuous: bool = False,
        server: str | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.is_continuous = is_continuous
        self._server = server
        self._session = session
        self._repeats = repeats
        self._prepared = prepared
        self.parallelism = parallelism(session, prepared)
        application = prepared.application
        self.checkpoint = QueryCheckpoint(
            application.settings,
            application.id,
            prepared.identity,
            self.parallelism,
            session.version,
            partial(delete_with_spark, session),
        )
        self._temporary = TemporaryDirectory("query")
        self._directory = self._temporary.path
        self._logs = HostLogReader(self._directory)
        self._planner_watch = PlannerWatch(self._directory)
        super().__init__(ControlFile(self._directory), Control(clock_ms=clock_ms, step=step))
        self._query: StreamingQuery | None = None
        self._last_batch = -1
        self._stops = Stops(prepared.application.id, self.parallelism, renewals.LEASE_SECONDS)
        self._last_progress = ""
        self._by_slot = slots(prepared.tasks(), self.parallelism)
        self.slots = Slots(self._by_slot)
        self._messages = HostMessages(self.slots, repeats, UNCAUGHT_EXCEPTION_HANDLER.of(application.settings))
        self._layout = SlotLayout(secrets.token_hex(8), self.parallelism, claims.WAIT_SECONDS)
        self.placement = SlotPlacement(
            session, Claims(log, application.id, self._layout), self.parallelism, late, repeats
        )
        self._shared_layout = self._layout if is_cluster(session.sparkContext.master) else None
        self._noted_servers: NotedServers | None = None
        if server is not None and lease is not None and self._shared_layout is not None:
            self._noted_servers = NotedServers(application.id, lease, server, self._by_slot)
        self._beats: Beats | None = None
        if is_continuous and step is None:
            self._beats = Beats(log, application.id, self._layout, repeats, is_host=self.slots.is_host)
        try:
            self._hosts = self._host_caller()
        except BaseException:
            self._logs.close()
            self._temporary.close()
            raise
        self._local_executor = self._find_local_executor()

    # ------------------------------------------------------------------ starting and stopping

    def start(self, trigger: Trigger) -> None:
        from pyspark.sql.functions import collect_list
        from pyspark.sql.streaming.state import GroupStateTimeout

        from .source import NAME, register

        spark = tune(self._session, self.checkpoint.is_local, self.parallelism)
        register(spark)
        self._directory.mkdir(0o700, exist_ok=True)  # something may have cleaned it away, and so ended the last query
        self._orders.write(self._control)
        PlannedApplication.of(
            self._prepared,
            self.parallelism,
            str(self._directory),
            trigger.interval_ms,
            is_continuous=self.is_continuous,
            drains_loops=trigger.drains_loops,
            log_level=level_here(),
        ).write()
        LogFile(self._directory).write(self._prepared.application.settings)
        messages = (
            spark.readStream.format(NAME)
            .option("control", str(self._directory))
            .load()
            .groupBy("group")
            .applyInPandasWithState(
                BatchFunction(
                    self._hosts,
                    self._prepared.application.id,
                    self._shared_layout,
                    str(self._directory),
                    level_here(),
                ),
                OUTPUT_SCHEMA,
                STATE_SCHEMA,
                "append",
                GroupStateTimeout.NoTimeout,
            )
            .observe(OBSERVED, *sums(), collect_list("message").alias("messages"))
        )
        writer = messages.writeStream.format("noop").outputMode("append")
        writer = writer.queryName(self._prepared.application.id)
        writer = writer.option("checkpointLocation", self.checkpoint.directory).trigger(**spark_trigger(trigger))
        self._last_batch, self._last_progress = -1, ""
        if self._beats is not None:
            self._beats.start()
        self._query = writer.start()
        self.placement.started(self._query)

    def _host_caller(self) -> HostCaller:
        application = self._prepared.application
        cargo = SlotCargo(
            ContinuousEngine if self.is_continuous else ApplicationEngine,
            application,
            self._prepared.tasks(),
            str(self._directory),
            level_here(),
            self._shared_layout,
            self._layout.run,
            self._host_companions(),
            gives_way=self._server is not None,
        )
        spark_application = self._session.sparkContext.applicationId
        settings = application.settings
        family = digest_of(spark_application, application.id, settings.log, settings.data_dir)
        lease_seconds = renewals.LEASE_SECONDS if self.is_continuous else LEASE_SECONDS
        return HostCaller(pack(cargo), family, f"application {application.id!r}", lease_seconds)

    def _host_companions(self) -> tuple[OpensCompanion, ...]:
        """Return the companions of each host, as the settings say."""
        application = self._prepared.application
        server = None if self._noted_servers is None else opens_machine_server(application)
        found = () if server is None else (server,)
        return (*found, HostStandbys) if NUM_STANDBY_REPLICAS.of(application.settings) else found

    def _find_local_executor(self) -> str:
        """Return the identity of the executor in the driver's JVM; "" if Spark runs on a cluster."""
        jvm: Any = self._session._jvm
        pid = int(jvm.java.lang.ProcessHandle.current().pid()) if self._shared_layout is None else 0
        return find_identity(pid, system_processes()).text if pid else ""

    @property
    def is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    def drain(self) -> None:
        """Plan no more batches, or in continuous mode only those that let the hosts stop."""
        self._stops.begin()
        self.set_control(stopping=True)

    def pause(self, subtopologies: Collection[int]) -> None:
        super().pause(subtopologies)
        if self.is_continuous:
            self.set_control(renewal=self._control.renewal + 1)

    def visit(self, visits: Sequence[Visit]) -> None:
        super().visit(visits)
        if self.is_continuous:
            self.set_control(renewal=self._control.renewal + 1)

    def is_at_rest(self) -> bool:
        if self._query is None or not self._query.isActive:
            return True
        if self._beats is not None and self._last_batch >= 0:
            return self._stops.are_over()
        return not self._query.status["isTriggerActive"]

    def stop(self) -> None:
        """Stop the query; a batch that runs is cut off."""
        if self._query is not None:
            self._query.stop()

    def close(self) -> None:
        try:
            self.stop()
        except Exception as error:
            _log.debug("stopping the query raised %s", error)
        self._query = None
        end_hosts(self._host_keys(), "the query has ended")
        self._logs.close()
        self._temporary.close()

    @property
    def moves(self) -> Counter[str]:
        return self.placement.moves

    @property
    def is_outgrown(self) -> bool:
        return self.placement.is_outgrown

    def _host_keys(self) -> list[str]:
        """Return the keys of this query's hosts; of those, too, that have not answered yet on the local executor."""
        owners = dict.fromkeys(range(self.parallelism), self._local_executor) if self._local_executor else {}
        owners.update(self.slots.executors)
        return [host_key(self._hosts.family, executor, slot) for slot, executor in owners.items()]

    # ------------------------------------------------------------------ watching

    def poll(self) -> list[EndedBatch]:
        """Return the batches that ended since the last call, and pass the workers' log lines on.

        Raises a task's error, and SparkFailure when the query ended by another error.
        """
        self._logs.forward()
        self._watch_planner()
        self._repeats.write_due()
        batches, failure = self._collect()
        if failure is None and self._beats is not None:
            beat, failure = self._collect_beats(self._beats)
            batches += beat
        if self.placement.look(lambda: parallelism(self._session, self._prepared)):
            self._set_slots()
        if self._noted_servers is not None:
            self._noted_servers.write(self.slots)
        if failure is not None:
            raise failure
        query = self._query
        if query is not None and not query.isActive:
            error = query.exception()
            batches_at_the_end, failure = self._collect()
            batches += batches_at_the_end
            self._logs.forward()
            if failure is not None:
                raise failure
            if error is not None:
                text = str(error)
                raise SparkFailure(explain(text, self.checkpoint.directory), stays=cause_in(text) is not None)
        return batches

    def _watch_planner(self) -> None:
        query = self._query
        assert query is not None
        if complaint := self._planner_watch.complaint(lambda: str(query.status["message"])):
            key = "planner silent"
            self._repeats.log(
                _log, logging.WARNING, key, "application %r: %s", self._prepared.application.id, complaint
            )

    def _collect(self) -> tuple[list[EndedBatch], PenstockError | None]:
        assert self._query is not None
        newest = self._query._jsq.lastProgress()
        if newest is None or newest.timestamp() == self._last_progress:
            return [], None
        self._last_progress = newest.timestamp()
        batches: list[EndedBatch] = []
        failures: list[TaskFailure] = []
        for progress in self._progress_since_last_batch():
            number = progress["batchId"]
            messages = (progress.get("observedMetrics") or {}).get(OBSERVED, {}).get("messages") or []
            # Spark reports progress without messages when it had no batch to run.
            if number <= self._last_batch or not messages:
                continue
            self._last_batch = number
            found = [SlotMessage.from_json(message) for message in messages]
            seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
            batches.append(self._messages.batch(number, seconds, found, failures))
            self.placement.note_batch(found)
            self._stops.note(found)
            if self._beats is not None:
                self._beats.note_batch()
        if batches:
            self._set_slots()
        return batches, self._messages.judge(failures, batches)

    def _collect_beats(self, beats: Beats) -> tuple[list[EndedBatch], PenstockError | None]:
        """Read the hosts' heartbeats; request a batch if one is missing, or a task was taken over."""
        messages, seconds = beats.poll(), beats.since_last
        failures: list[TaskFailure] = []
        batches = [self._messages.batch(None, seconds, messages, failures)] if messages else []
        suspects = beats.suspects(range(self.parallelism))
        if suspects is not None or failures:
            # Suspicions of which the planner has not read yet stay.
            kept = self._control.suspects if suspects is None else suspects
            self.set_control(renewal=self._control.renewal + 1, suspects=kept)
        return batches, self._messages.judge(failures, batches)

    def _set_slots(self) -> None:
        """Let the source plan for the present owners; the tasks of a slot without one are opened again."""
        owners = {str(slot): executor for slot, executor in self.placement.owners.items()}
        self.slots.move((slot for slot in range(self.parallelism) if str(slot) not in owners), self.placement.lost)
        tick, unopened, standbys = self.slots.next_tick(), self.slots.unopened(), self._standbys()
        # The next batch of continuous mode may be far off, and until then a lost task has no copy.
        renewal = self._control.renewal + (self.is_continuous and standbys != self._control.standbys)
        self.set_control(next_tick=tick, unopened=unopened, owners=owners, standbys=standbys, renewal=renewal)

    def _standbys(self) -> dict[str, list[str]]:
        """Return the tasks that each slot's host keeps copies of."""
        settings = self._prepared.application.settings
        kept: dict[str, list[str]] = {}
        for slot, keepers in self.placement.standbys(NUM_STANDBY_REPLICAS.of(settings), RACKS.of(settings)).items():
            for keeper in keepers:
                kept.setdefault(str(keeper), []).extend(self._by_slot.get(slot, ()))
        return kept

    def _progress_since_last_batch(self) -> list[dict[str, Any]]:
        """Return Spark's progress events, the oldest first. Each is fetched once: they are long."""
        assert self._query is not None
        events = self._query._jsq.recentProgress()
        found: list[dict[str, Any]] = []
        for index in range(len(events) - 1, -1, -1):
            if events[index].batchId() <= self._last_batch:
                break
            found.insert(0, json.loads(events[index].json()))
        return found


def parallelism(session: SparkSession, prepared: Prepared) -> int:
    """Return the number of Spark partitions of the tasks."""
    tasks = max(1, len(prepared.assignment.tasks))
    given = PARALLELISM.of(prepared.application.settings)
    return min(tasks, given or int(session.sparkContext.defaultParallelism))


def spark_trigger(trigger: Trigger) -> dict[str, Any]:
    """Return the arguments of Spark's `DataStreamWriter.trigger`."""
    if trigger.drains:
        return {"availableNow": True}
    return {"processingTime": f"{trigger.interval_ms} milliseconds"}


_FORM = 3
"""Of the offsets and states that this version writes: a group is a slot."""


@dataclass(frozen=True)
class _Pointer:
    """The directory in use, and the query that it was made for. `form`: of its offsets and states."""

    directory: str
    identity: str
    parallelism: int
    spark: str
    form: int


class QueryCheckpoint:
    """The checkpoint of one application.

    `identity` is the application's incarnation in the log. A checkpoint of another incarnation raises
    IncompatibleStateError: the log was replaced or lost. A checkpoint for another number of Spark partitions, of
    another release of Spark, or of another form is replaced. `delete` deletes the directory or URL of a replaced one.
    """

    def __init__(
        self,
        settings: Settings,
        application_id: str,
        identity: str,
        parallelism: int,
        spark: str,
        delete: Callable[[str], None],
    ) -> None:
        self._delete = delete
        self._root = checkpoint_location(settings, application_id)
        self.is_local = "://" not in self._root
        local = pointer_directory(settings, application_id)
        with checkpoint_writable(local):
            make_private_directory(local)
        self._path = local / "current.json"
        self._wanted = _Pointer("", identity, parallelism, spark, _FORM)
        found = self._read()
        self.is_new = found is None
        if found is not None and found.identity != identity:
            raise IncompatibleStateError(
                f"application {application_id!r}: Spark's checkpoint in {self._path.parent} was made with another log, "
                f"or this one was replaced: the log {settings.shown('log')!r} does not know the commits that it "
                "remembers. Is it the right log? If the application was reset with `penstock reset` on another host, "
                f"delete {self._path.parent}. Otherwise bring that log back: with this one everything is processed "
                "again"
            )
        if found is not None and replace(found, directory="") == self._wanted:
            self.directory = found.directory
        else:
            self.renew()

    def renew(self) -> None:
        """Start a new checkpoint and delete the present one."""
        self.is_new = True
        directory = f"{self._root}/{secrets.token_hex(6)}"
        previous = self._read()
        aside = self._path.with_suffix(".new")
        pointer = replace(self._wanted, directory=directory)
        with checkpoint_writable(self._path.parent):
            write_private_text(aside, json.dumps(asdict(pointer)))
            os.replace(aside, self._path)
        self.directory = directory
        if previous is not None:
            try:
                self._delete(previous.directory)
            except Exception as error:
                _log.warning("%s", not_deleted(previous.directory, error))

    def _read(self) -> _Pointer | None:
        try:
            return _Pointer(**json.loads(self._path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            _log.warning("%s is damaged (%s): starting a new checkpoint", self._path, error)
            return None


def delete_with_spark(session: SparkSession, location: str) -> None:
    """Delete a directory or URL with all that is in it, by the file systems and credentials that Spark has."""
    context = session.sparkContext
    assert context._jvm is not None
    path = context._jvm.org.apache.hadoop.fs.Path(location)
    path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)
