"""EmbeddedEngine: runs an application on this machine, without Spark and Java. EmbeddedQuery: its tasks."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from penstock import Application, Commit, LeaseTakenError, PenstockError, RuntimeUnavailableError, World
from penstock.plugins.engine.host.application_engine import ApplicationEngine
from penstock.plugins.engine.host.client import HostClient, HostSpec, end_hosts
from penstock.plugins.engine.host.continuous_engine import ContinuousEngine
from penstock.plugins.engine.host.executor_identity import ExecutorIdentity
from penstock.plugins.engine.host.log_lines import HostLogReader
from penstock.plugins.engine.host.place import ProcessId, started_at
from penstock.plugins.engine.host.reports import STUCK_SECONDS, Meter, SlotMessage, SlotPlan, TaskFailure
from penstock.plugins.engine.host.slot_engine import HostInfo, SlotCargo, SlotEngine, SlotRequest
from penstock.plugins.engine.program.preparation import check_open_files
from penstock.plugins.engine.task.process_resources import tune_garbage_collector
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.engine.task.temporary import TemporaryDirectory

from .companion import OpenApplication, prepared_application
from .engine import Engine
from .order import RunOrder, Trigger
from .planning.control import Control, OwnOrders, PlannedApplication
from .planning.planner import BatchPlanner
from .progress import EndedBatch, RunSummary
from .query import HostMessages, Query, SteppingDriver, stepping
from .run_loop import RunLoop, begun
from .settings import PROCESSES, UNCAUGHT_EXCEPTION_HANDLER
from .slots import Slots, slots

_SILENT_SECONDS = 12.0
"""Seconds without a sign, and without processor time, after which a host is frozen; one that works gives a sign every
five, unless a call keeps Python's lock."""


class MachineHost:
    """A host in a process of its own: started when it is first called, and again when it is lost.

    It ends with this process. One thread at a time calls its methods.
    """

    def __init__(self, application_id: str, spec: HostSpec) -> None:
        self._application_id = application_id
        own = ProcessId(os.getpid(), started_at(os.getpid()), "the process of the engine")
        self._client = HostClient(replace(spec, watched=(own,)))
        self._has_answered = False

    def call(self, request: SlotRequest) -> SlotMessage:
        """Return the tasks' reports in a message, with errors and lost hosts."""
        reason = "host lost" if self._has_answered else "first"
        try:
            message: SlotMessage = self._client.call(request, reason, _SILENT_SECONDS)
            self._has_answered = True
        except Exception as error:
            failure = TaskFailure.of_slot(self._application_id, request.plan.slot, error)
            message = SlotMessage(request.plan.slot, request.executor, failure=failure)
        return replace(message, losses=self._client.take_losses())

    def end_stuck(self, message: SlotMessage) -> None:
        """End the host, because its tasks make no turn: the next call starts another one."""
        self._client.close()
        process = 0 if message.host is None else message.host.process
        end_hosts([self._client.spec.key], "its tasks have made no turn for too long", process)

    def close(self) -> None:
        """End the host; nothing of it is left when this returns."""
        self._client.close()
        end_hosts([self._client.spec.key], "the run has ended")


class OwnHost:
    """The one slot of an application, in this process. One thread calls all methods."""

    def __init__(self, cargo: SlotCargo, world: World) -> None:
        self._application_id = cargo.application.id
        self._cargo = cargo
        self._world = world
        self._engine: SlotEngine | None = None

    def call(self, request: SlotRequest) -> SlotMessage:
        """Return the tasks' reports in a message, with their error."""
        try:
            if self._engine is None:
                self._engine = self._cargo.engine(HostInfo(self._world.token(8), 0, "", "first", Meter(), self._world))
            message: SlotMessage = self._engine.handle(request)
            return message
        except Exception as error:
            failure = TaskFailure.of_slot(self._application_id, request.plan.slot, error)
            return SlotMessage(request.plan.slot, request.executor, failure=failure)

    def end_stuck(self, message: SlotMessage) -> None:
        """Raise RuntimeUnavailableError: what a processor of this process does cannot be ended from outside."""
        raise RuntimeUnavailableError(
            f"application {self._application_id!r}: its tasks have made no turn for {message.stuck_seconds:.0f} s "
            f"({message.stuck_in}): a processor does not return. Nothing since their last commits counts, and nothing "
            "is lost: correct the processor, and start the application again"
        )

    def close(self) -> None:
        """Commit where tasks work on their own, and close everything."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


T = TypeVar("T")

_RENEWAL_SECONDS = 0.5
"""Seconds between two questions to the hosts of the continuous mode; each also renews the host's lease."""
_CLOSE_SECONDS = 40.0
"""Seconds that `close` waits for the batch or the commits that are under way."""

_log = logging.getLogger("penstock.embedded")


class EmbeddedQuery(Query):
    """The query of a prepared application, in as many task hosts as `processes`; 0: in this process.

    With `clock_ms` and `step` the caller sets the planner's clock and steps (see Control). `is_continuous`: tasks work
    on their own, and are asked twice a second what they did. `world`: its World; hosts beside this process have a world
    of their own.
    """

    def __init__(
        self,
        running: OpenApplication,
        processes: int = 0,
        *,
        clock_ms: int | None = None,
        step: int | None = None,
        is_continuous: bool = False,
        world: World | None = None,
    ) -> None:
        self._world = world = world or World()
        self._running = running
        self._prepared = prepared = running.prepared
        self._is_continuous = is_continuous
        self._number = max(1, min(processes, len(prepared.assignment.tasks)))
        self._by_slot = slots(prepared.tasks(), self._number)
        self.slots = Slots(self._by_slot)
        self._messages = HostMessages(
            self.slots, running.repeats, UNCAUGHT_EXCEPTION_HANDLER.of(prepared.application.settings)
        )
        self._executor = ExecutorIdentity("embedded", socket.gethostname(), os.getpid(), "", "").text
        owners = {str(slot): self._executor for slot in self._by_slot}
        super().__init__(OwnOrders(), Control(clock_ms=clock_ms, step=step, owners=owners))
        kind = ContinuousEngine if is_continuous else ApplicationEngine
        self._temporary: TemporaryDirectory | None = None
        self._logs: HostLogReader | None = None
        self._hosts: Mapping[int, OwnHost | MachineHost]
        if processes:
            self._temporary = TemporaryDirectory("query")
            self._hosts = self._machine_hosts(kind, str(self._temporary.path))
            self._logs = HostLogReader(self._temporary.path)
        else:
            self._hosts = {0: OwnHost(SlotCargo(kind, prepared.application, prepared.tasks(), "", 0), world)}
        self._callers = world.threads(self._number, "penstock-callers") if self._number > 1 else None
        self._known: dict[str, Commit] = {}
        self._stopping = threading.Event()
        self._batches: SimpleQueue[EndedBatch] = SimpleQueue()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def _machine_hosts(self, kind: type[SlotEngine], directory: str) -> dict[int, MachineHost]:
        application = self._prepared.application
        level = min(logging.getLogger(name).getEffectiveLevel() for name in ("", "penstock"))
        gives_way = self._running.server is not None
        cargo = pack(SlotCargo(kind, application, self._prepared.tasks(), directory, level, gives_way=gives_way))
        title, digest = f"application {application.id!r}", hashlib.sha256(cargo).hexdigest()
        return {
            slot: MachineHost(application.id, HostSpec(self._world.token(10), slot, digest, cargo, title, ()))
            for slot in self._by_slot
        }

    # ------------------------------------------------------------------ called by the run

    def start(self, trigger: Trigger) -> None:
        renews = self._is_continuous and self._control.step is None
        work = self._renew if renews else self._run_batches
        self._thread = threading.Thread(target=self._run, args=(work, trigger), name="penstock-driver", daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def poll(self) -> list[EndedBatch]:
        self._running.repeats.write_due()
        if self._logs is not None:
            self._logs.forward()
        if not self.is_active and self._error is not None:
            raise self._error
        found = []
        with suppress(Empty):
            while True:
                found.append(self._batches.get_nowait())
        return found

    def drain(self) -> None:
        self._stopping.set()
        self.set_control(stopping=True)

    def is_at_rest(self) -> bool:
        return not self.is_active

    def stop(self) -> None:
        self.drain()

    def close(self) -> None:
        self.drain()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                _log.warning(
                    "application %r: what is processed now did not end within %.0f s: nothing of it is committed",
                    self._prepared.application.id, _CLOSE_SECONDS,
                )  # fmt: skip
        if self._logs is not None:
            self._logs.close()
        if self._temporary is not None:
            self._temporary.close()

    # ------------------------------------------------------------------ the thread

    def _run(self, work: Any, trigger: Trigger) -> None:
        try:
            work(trigger)
        except BaseException as error:
            self._error = error
        finally:
            try:
                self._of_each(lambda slot: self._hosts[slot].close())
            except BaseException as error:
                self._error = self._error or error
            if self._callers is not None:
                self._callers.shutdown()

    def _run_batches(self, trigger: Trigger) -> None:
        """Plan batches and run them, as Spark's query does."""
        plan = PlannedApplication.of(
            self._prepared,
            self._number,
            self._world.token(8),
            trigger.interval_ms,
            drains_loops=trigger.drains_loops,
        )
        planner = BatchPlanner(plan, self._running.log, orders=self._orders)
        if trigger.drains:
            planner.drain_only()
        offset = planner.first()
        while not self._stopping.is_set():
            began = self._world.seconds()
            following = planner.next(offset, plan.max_records)
            if following is not offset:
                offset = following
                messages = self._call({each.slot: each for each in planner.plans(offset)})
                self._note(offset["seq"], self._world.seconds() - began, messages)
            elif trigger.drains:
                return
            self._stopping.wait(max(0.0, began + trigger.interval_ms / 1000 - self._world.seconds()))

    def _renew(self, trigger: Trigger) -> None:
        """Let the tasks work on their own, and ask for their reports, until the end."""
        number, opens, asked_at = 0, True, self._world.seconds()
        while True:
            stopping = self._stopping.is_set()
            plans = {
                slot: SlotPlan(
                    slot,
                    self._executor,
                    self._world.clock.now_ms(),
                    {task: {} for task in tasks} if opens else {},
                    stopping=stopping,
                    is_settled=self._control.unopened == [],
                    **self._control.of_tasks(),
                )
                for slot, tasks in self._by_slot.items()
            }
            messages = self._call(plans)
            self._check_turns(messages)
            number += opens
            seconds, asked_at = self._world.seconds() - asked_at, self._world.seconds()
            # Tasks that were taken over, and those of a host that was lost, are opened again.
            opens = self._note(number if opens else None, seconds, messages) or any(
                message.losses for message in messages
            )
            if stopping:
                return
            self._stopping.wait(_RENEWAL_SECONDS)

    def _call(self, plans: Mapping[int, SlotPlan]) -> list[SlotMessage]:
        """Hand the hosts their plans in parallel; return their messages."""
        known = dict(self._known)
        messages = self._of_each(lambda slot: self._hosts[slot].call(SlotRequest(plans[slot], known, self._executor)))
        for result in (result for message in messages for result in message.results):
            if result.report is not None:
                self._known[result.task_id] = Commit(result.report.positions, result.report.version)
        return messages

    def _of_each(self, work: Callable[[int], T]) -> list[T]:
        return list((map if self._callers is None else self._callers.map)(work, self._hosts))

    def _note(self, number: int | None, seconds: float, messages: list[SlotMessage]) -> bool:
        """Record the hosts' reports; return whether a task was taken over. Raises the error that a task failed with."""
        failures: list[TaskFailure] = []
        batch = self._messages.batch(number, seconds, messages, failures)
        self._batches.put(batch)
        error: PenstockError | None = self._messages.judge(failures, [batch])
        if error is not None:
            raise error
        self.set_control(next_tick=self.slots.next_tick(), unopened=self.slots.unopened())
        return bool(failures)

    def _check_turns(self, messages: list[SlotMessage]) -> None:
        for message in messages:
            if message.stuck_seconds > STUCK_SECONDS:
                self._hosts[message.slot].end_stuck(message)


_OF_SPARK = {"parallelism": "; 'processes' spreads its tasks over processes", "checkpoint_dir": ""}
"""Settings that only Spark reads, and what to set instead."""


class EmbeddedEngine(Engine):
    """The engine `embedded`: the tasks of an application run in this process, or in task hosts of this machine."""

    title = "the embedded engine"

    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        for name, instead in _OF_SPARK.items():
            if name in application.settings.of_plugins:
                what = "application %r: the embedded engine does not read the setting %r%s"
                _log.info(what, application.id, name, instead)
        try:
            return self._run(application, order)
        except LeaseTakenError:
            if order.waits and order.stop is not None and order.stop.is_set():
                return RunSummary(application.id, stopped_by="stop")
            raise

    def _run(self, application: Application, order: RunOrder) -> RunSummary:
        opening = partial(opened, application)
        with begun(application, order, opening, has_tasks_here=True) as (running, stop, statistics):
            order.note_start()
            if threading.current_thread() is threading.main_thread():
                # The process is the run's own. In a service the collector is left as it is.
                tune_garbage_collector()
            return _EmbeddedRun(running, order, stop, statistics).until_done()


class _EmbeddedRun(RunLoop):
    def new_query(self, clock_ms: int | None) -> EmbeddedQuery:
        processes = PROCESSES.of(self._running.application.settings)
        return EmbeddedQuery(self._running, processes, clock_ms=clock_ms, is_continuous=self._trigger.is_continuous)


@contextmanager
def opened(application: Application, is_wanted: Callable[[], bool] = lambda: False) -> Iterator[OpenApplication]:
    """Open an application, and close it at the end. Raises what `Engine.run` does."""
    with prepared_application(application, is_wanted) as (prepared, log, lease):
        check_open_files(prepared, log, max(1, PROCESSES.of(prepared.application.settings)))
        running = OpenApplication(prepared, log, lease)
        try:
            yield running
        finally:
            running.repeats.write_rest()


@contextmanager
def stepping_embedded(application: Application, *, is_continuous: bool = False) -> Iterator[SteppingDriver]:
    """Open an application that processes records only in a test's steps, in this process.

    `is_continuous`: the tasks run as with the trigger "continuous", but only within steps.
    """
    with (
        opened(application) as running,
        stepping(running, EmbeddedQuery(running, clock_ms=0, step=-1, is_continuous=is_continuous)) as driver,
    ):
        yield driver
