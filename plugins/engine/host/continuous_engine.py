"""ContinuousEngine: the tasks of one slot that poll, process and commit on their own. Batches only renew its lease."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from penstock import (
    Commit,
    Log,
    OffsetOutOfRangeError,
    OutputBatch,
    PenstockError,
    RuntimeUnavailableError,
    TopicPartition,
    World,
)
from penstock.plugins.engine.program.preparation import check_open_files_of_process
from penstock.plugins.engine.task.locations import read_up_to
from penstock.plugins.engine.task.logged_task import FIRST
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.own_topics import HEARTBEATS
from penstock.plugins.engine.task.report import DetailedCounts

from .log_lines import running_node
from .reports import STUCK_SECONDS, Observed, Offsets, SlotMessage, SlotPlan, TaskFailure, TaskResult
from .slot_engine import HostInfo, SlotCargo, SlotEngine, SlotRequest

_INTERVAL_SECONDS = 1.0

_log = logging.getLogger("penstock.hosts")


@dataclass(eq=False)
class HeartbeatSender:
    """Sends a heartbeat once a second, in a thread of its own, whatever the host's tasks do.

    `make` returns the next one. `give_back` gets an unsent heartbeat: its reports go with the next one.
    """

    log: Log
    application_id: str
    make: Callable[[], SlotMessage]
    give_back: Callable[[SlotMessage], None]
    world: World

    def __post_init__(self) -> None:
        self._topic = HEARTBEATS.of(self.application_id)
        self._ticker = self.world.ticker("penstock-heartbeats", _INTERVAL_SECONDS, self._send)

    def _send(self) -> None:
        message = self.make()
        try:
            self.log.append(OutputBatch(self._topic, [str(message.slot).encode()], [message.to_json().encode()], [0]))
        except Exception as error:
            self.give_back(message)
            if not isinstance(error, PenstockError):
                raise  # its ticker logs it
            _log.debug("a heartbeat could not be sent: %s", error)

    def close(self) -> None:
        """Stop sending; unsent heartbeats stay with their maker."""
        self._ticker.close()


class HeartbeatReader:
    """The driver's end: reads the heartbeats of one run, from now on."""

    def __init__(self, log: Log, application_id: str, run: str) -> None:
        self._log = log
        self._partition = TopicPartition(HEARTBEATS.of(application_id), 0)
        self._run = run
        self._next = log.end_offsets([self._partition])[self._partition]

    def poll(self) -> list[SlotMessage]:
        """Return the heartbeats that came since the last call.

        Those that the log has deleted are left out, and those of another form: another release may have sent them.
        """
        end = self._log.end_offsets([self._partition])[self._partition]
        if end < self._next:
            self._next = 0  # the topic was made again
        found: list[SlotMessage] = []
        with suppress(OffsetOutOfRangeError):  # it was made again meanwhile: the next call sees that
            for batch in read_up_to(self._log, self._partition, self._next, end):
                self._next = batch.next_offset
                found += [each for value in batch.values if value and (each := _read(value)) and each.run == self._run]
            self._next = end
        return found


def _read(value: bytes) -> SlotMessage | None:
    try:
        return SlotMessage.from_json(value.decode())
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        _log.debug("a message among the heartbeats is none: %s: %s", type(error).__name__, error)
        return None


_LOOK_SECONDS = 1.0
"""How often a thread that waits for a command looks whether the tasks are stuck."""
_COLLECT_SECONDS = 0.5
"""How often the loop's reports are taken for the next heartbeat."""
_MOMENT_SECONDS = 1.0
"""A turn that takes longer is worth a note of where it is."""
_SAY_SECONDS = 30.0
"""Seconds after which a stop logs the reason of its wait."""
_CLOSE_SECONDS, _STEP_SECONDS = 30.0, 120.0


class ContinuousEngine(SlotEngine):
    """Runs the tasks of its slot in a thread of its own, and sends heartbeats from another one.

    A renewal starts tasks that do not run yet, and takes reports along. A step processes everything up to planned ends
    at a test's time; between steps nothing is processed.
    """

    sends_at_once = True

    def __init__(self, cargo: SlotCargo, host: HostInfo) -> None:
        super().__init__(cargo, host)
        self._run_token = cargo.run
        self._slot = host.slot
        self._executor = ""
        self._world = host.world
        self._step_clock: int | None = None
        self._lock = threading.Lock()
        self._results: list[TaskResult] = []
        self._counts = DetailedCounts()
        self._failure_of_slot: TaskFailure | None = None
        self._open_tasks = 0
        self._state_rows: int | None = None
        self._turned_at = self._world.seconds()
        self._commands: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._ending = False
        self._collect_at = 0.0
        self._loop: TaskLoop | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-tasks", daemon=True)
        self._thread.start()
        self._heartbeats: HeartbeatSender | None = None

    # ------------------------------------------------------------------ called by the host

    def handle(self, request: SlotRequest) -> SlotMessage:
        """Renew, step or stop."""
        plan = request.plan
        self._claim(plan, request.executor)
        self._tell_companions(plan)
        self._executor = request.executor
        self._resources.is_settled = plan.is_settled
        if self._failure_of_slot is not None:
            return self._message()
        if plan.stopping:
            self._do(self._stop)
            self._end_heartbeats()  # what the last one could not send goes with this message
            return replace(self._message(), stopped=True, observed=self._observed())
        if plan.step >= 0:
            self._do(lambda: self._step(plan, request.known), most=_STEP_SECONDS)
        else:
            check_open_files_of_process(self._application, self._log, len(plan.ends))
            self._commands.put(
                (lambda: self._tasks().run(plan.ends, request.known, plan.paused, plan.visits), Future())
            )
            if self._heartbeats is None and self._run_token:
                self._heartbeats = HeartbeatSender(
                    self._log, self._application.id, self._message, self._take_back, self._world
                )
        return replace(self._message(), observed=self._observed())

    def close(self) -> None:
        """Commit, and close everything."""
        try:
            self._do(self._stop, most=_CLOSE_SECONDS)
        finally:
            self._ending = True
            self._commands.put((lambda: None, Future()))
            self._thread.join(1.0)
            self._end_heartbeats()
            super().close()

    def _end_heartbeats(self) -> None:
        """Send no more of them; one under way is either in the log or given back when this returns."""
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            heartbeats.close()

    def _do(self, command: Callable[[], Any], most: float = inf) -> None:
        """Let the tasks' thread run a command, and wait for it, until that thread is stuck, or at most `most` seconds.

        It begins after the record or punctuator that is being processed.
        """
        done: Future[Any] = Future()
        self._commands.put((command, done))
        began = self._world.seconds()
        until, say_at = began + most, began + _SAY_SECONDS
        while True:
            self._world.wait([done], _LOOK_SECONDS)
            if done.done():
                break
            now, stuck = self._world.seconds(), self._stuck_seconds()
            if stuck > STUCK_SECONDS or now >= until:
                raise RuntimeUnavailableError(
                    f"application {self._application.id!r}: the tasks of slot {self._slot} did not answer within "
                    f"{now - began:.0f} s; a processor may not return ({self._stuck_in()})"
                )
            if now >= say_at:
                say_at = now + _SAY_SECONDS
                _log.warning(
                    "application %r, slot %d: waiting for %.0f s for the end of what is processed now (%s)",
                    self._application.id, self._slot, now - began, self._stuck_in(),
                )  # fmt: skip
        done.result()

    # ------------------------------------------------------------------ messages

    def _message(self) -> SlotMessage:
        """Return reports and failures of the tasks since the last message."""
        with self._lock:
            results, self._results = self._results, []
        loop = self._loop
        restoring = {} if loop is None else loop.restoring()
        results += [TaskResult(task, restoring=progress) for task, progress in restoring.items()]
        stuck = self._stuck_seconds()
        return SlotMessage(
            self._slot,
            self._executor,
            results=results,
            failure=self._failure_of_slot,
            host=self._host.status(self._open_tasks),
            lines=self._logs.take(),
            run=self._run_token,
            stuck_seconds=stuck,
            stuck_in=self._stuck_in() if stuck > _MOMENT_SECONDS else "",
            paused=() if loop is None else loop.paused,
            server=self._server_url(),
        )

    def _observed(self) -> Observed:
        """Return the tasks' work since the last call."""
        with self._lock:
            counts, self._counts = self._counts, DetailedCounts()
        return Observed(counts, state_rows=self._state_rows)

    def _stuck_seconds(self) -> float:
        """Return the seconds since the tasks' last turn, or the last step of a restore or filling."""
        loop = self._loop
        still = 0.0 if loop is None else loop.still()[0]
        return max(still, self._world.seconds() - self._turned_at)

    def _stuck_in(self) -> str:
        loop, turned = self._loop, self._world.seconds() - self._turned_at
        if loop is not None and (still := loop.still())[0] > turned:
            return still[1]
        task = "" if loop is None else loop.current
        return f"task {task}, {_whereabouts(self._thread)}" if task else _whereabouts(self._thread)

    def _take_back(self, message: SlotMessage) -> None:
        with self._lock:
            self._results = message.results + self._results

    def _collect(self, loop: TaskLoop) -> None:
        """Take the tasks' reports and failures, for the next message."""
        results = [self._failure(failed.task_id, failed.error) for failed in loop.take_failures()]
        for report in loop.take_reports():
            if report.opened == FIRST:
                report = report.opened_for(self._host.reason)
            results.append(TaskResult(report.task_id, report))
        with self._lock:
            self._results += results
            self._counts = sum((each.report for each in results if each.report is not None), self._counts)
            self._open_tasks, self._state_rows = loop.open_tasks, loop.state_rows

    # ------------------------------------------------------------------ the tasks' thread

    def _run(self) -> None:
        while not self._ending:
            try:
                self._obey()
                loop = self._loop
                if loop is not None and self._step_clock is None:
                    loop.turn()
                    if (now := self._world.seconds()) >= self._collect_at:
                        self._collect_at = now + _COLLECT_SECONDS
                        self._collect(loop)
            except BaseException as error:
                self._give_up(error)
            self._turned_at = self._world.seconds()

    def _obey(self) -> None:
        """Run the commands that came; without tasks to turn, wait for one."""
        rests = self._loop is None or self._step_clock is not None
        while True:
            try:
                command, done = self._commands.get(rests, 1.0 if rests else None)
            except Empty:
                return
            rests = False
            try:
                done.set_result(command())
            except BaseException as error:
                done.set_exception(error)
                raise

    def _give_up(self, error: BaseException) -> None:
        """Close all tasks after an error that is not of a single one; the driver gets it with the next message."""
        with self._lock:
            self._failure_of_slot = TaskFailure.of_slot(self._application.id, self._slot, error)
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close(commit=False)

    def _tasks(self) -> TaskLoop:
        if self._loop is None:
            self._loop = TaskLoop(self._application, self._partitions, self._log, self._resources, self._now_ms)
        return self._loop

    def _now_ms(self) -> int:
        return self._world.clock.now_ms() if self._step_clock is None else self._step_clock

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.commit_all()
                self._collect(loop)
            finally:
                loop.close(commit=False)
                self._open_tasks = 0

    def _step(self, plan: SlotPlan, known: Mapping[str, Commit]) -> None:
        """Process up to the planned ends at the plan's time, and commit."""
        self._step_clock = plan.clock_ms
        loop = self._tasks()
        loop.run(plan.ends, known, plan.paused, plan.visits)
        ends: dict[str, Offsets] = {task: each for task, each in plan.ends.items() if each}
        loop.process_to(ends, plan.front_of)
        self._collect(loop)


def _whereabouts(thread: threading.Thread) -> str:
    """Return the node whose processor a thread runs, if it runs one, and its line of code; "" if it runs nothing."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return ""
    code = frame.f_code
    line = f"in {code.co_qualname} ({Path(code.co_filename).name}, line {frame.f_lineno})"
    node = running_node(frame)
    return f"node {node!r}, {line}" if node else line
