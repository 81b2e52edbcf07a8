"""ApplicationEngine: the tasks of one slot of an application that runs on a log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from math import inf

from penstock import Commit, StaleStoreError, TaskCommitter, TaskId
from penstock.plugins.engine.program.preparation import check_open_files_of_process
from penstock.plugins.engine.task.logged_task import FIRST
from penstock.plugins.engine.task.task_runner import rows_of
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.task.failures import RetryRequested
from penstock.task.visits import Visit

from .reports import SlotMessage, SlotPlan, TaskResult
from .slot_engine import SERVER_SECONDS, HostInfo, SlotCargo, SlotEngine, SlotRequest

_OPENING_THREADS = 16
_RESTORING_THREADS = 4
_LEAST_SECONDS = 0.1
"""How long a task may read at least, however many share a slot: a batch of nothing but commits gets nowhere."""
_GLOBALS = ""
"""The key of the global stores beside the ids of tasks."""

_log = logging.getLogger("penstock.hosts")


class ApplicationEngine(SlotEngine):
    """Runs the tasks of its slot, one after the other, and keeps them open until the host ends.

    Their state is restored in threads beside it; other tasks run meanwhile.
    """

    def __init__(self, cargo: SlotCargo, host: HostInfo) -> None:
        super().__init__(cargo, host)
        self._tasks: dict[str, TaskWorker] = {}
        self._visits: Sequence[Visit] = ()
        self._wait_until: dict[str, float] = {}
        """By task, and for the global stores, the time before which a failed record is not tried again."""
        self._restores = self._resources.world.threads(_RESTORING_THREADS, "penstock-restores")
        self._restoring: dict[str, Future[None]] = {}
        self._kept: dict[int, Sequence[TaskResult]] = {}
        """By message number, the tasks' reports in messages that are not known to have arrived."""
        self._messages = 0

    def handle(self, request: SlotRequest) -> SlotMessage:
        """Run one batch."""
        plan = request.plan
        self._claim(plan, request.executor)
        token, heard = request.heard or ("", 0)
        if token == self._host.token:
            self._kept = {number: reports for number, reports in self._kept.items() if number > heard}
        kept = dict(self._kept)
        self._tell_companions(plan)
        self._resources.is_settled = plan.is_settled
        self._visits = plan.visits
        for task in self._tasks.values():
            task.ask(plan.visits)
        names = [*plan.ends, *self._due(plan)]
        if names and not self._update_globals(plan):
            results = [self._rest(name, plan, request.known) for name in names]
        else:
            results = self._run_all(names, plan, request.known)
        self._logs.task = ""
        self._resources.clean_up(self._application)
        self._messages += 1
        if request.heard is not None and (reports := [each for each in results if each.report is not None]):
            self._kept[self._messages] = reports
        return SlotMessage(
            plan.slot,
            request.executor,
            results=results,
            host=self._host.status(sum(task.is_open for task in self._tasks.values())),
            lines=self._logs.take(),
            paused=plan.paused,
            server=self._server_url(SERVER_SECONDS),
            number=self._messages,
            kept=kept,
            state_rows=rows_of(self._tasks.values()),
        )

    def close(self) -> None:
        for name in self._restoring:
            if (opening := self._tasks[name].opening) is not None:
                opening.end()
        self._restores.shutdown(cancel_futures=True)
        for task in self._tasks.values():
            task.close()
        super().close()

    # ------------------------------------------------------------------ inside

    def _update_globals(self, plan: SlotPlan) -> bool:
        """Read the global stores on, for all tasks; return False while a failed record of theirs has to wait."""
        if self._waits(_GLOBALS):
            return False
        try:
            stores = self._resources.globals_of(self._application)
            stores.update(self._log, plan.global_ends, plan.clock_ms, plan.topic_ids)
        except RetryRequested as retry:
            self._wait(_GLOBALS, retry)
            return False
        except StaleStoreError as error:
            _log.warning("%s; it is built again, and the tasks are opened again", error)
            for name, task in self._tasks.items():
                if name not in self._restoring:
                    task.abandon("taken over")
            self._resources.close_globals(self._application)
        except Exception:
            _log.debug("each task that needs the global stores raises this error, with its name", exc_info=True)
        return True

    def _run_all(self, names: Sequence[str], plan: SlotPlan, known: Mapping[str, Commit]) -> list[TaskResult]:
        failed = self._prepare(names, plan.clock_ms, known)
        current = self._are_current(names)
        seconds_now = self._resources.world.seconds
        until = seconds_now() + (inf if plan.seconds is None else plan.seconds)
        results = [self._failure(name, error) for name, error in failed.items()]
        ready = [name for name in names if name not in failed and name not in self._restoring]
        waiting = [name for name in names if name in self._restoring]
        while True:
            for left, name in zip(range(len(ready) + len(waiting), 0, -1), ready, strict=False):
                # What a task does not need of its share is for those after it.
                seconds = max(_LEAST_SECONDS, (until - seconds_now()) / left)
                results.append(self._run(name, plan, known.get(name), current.get(name), seconds))
            if not (ready := self._restored(waiting, plan.restore_seconds)):
                break
        results += [TaskResult(name, restoring=self._tasks[name].restoring) for name in waiting]
        return results

    def _restored(self, waiting: list[str], seconds: float | None) -> list[str]:
        """Wait up to `seconds` for the restores of tasks; remove the finished ones from the list."""
        if waiting:
            self._resources.world.wait([self._restoring[name] for name in waiting], seconds)
        done = [name for name in waiting if self._restoring[name].done()]
        for name in done:
            waiting.remove(name)
            del self._restoring[name]
        return done

    def _due(self, plan: SlotPlan) -> Iterable[str]:
        """Return tasks without records that have a punctuator to call, or to report, or a commit to repeat."""
        for name, task in self._tasks.items():
            if name in plan.ends:
                continue
            is_due = task.task is not None and task.task.is_wall_clock_due(plan.clock_ms)
            if task.commit_expires() or (is_due and not _is_paused(name, plan)):
                yield name

    def _prepare(self, names: Iterable[str], clock_ms: int, known: Mapping[str, Commit]) -> dict[str, Exception]:
        """Open tasks as far as that can be done side by side; return the errors of those that failed.

        Raises RuntimeUnavailableError before any is opened when the limit of open files is too low for all.
        """
        opening = []
        for name in names:
            task = self._tasks.get(name)
            if task is None:
                task = self._tasks[name] = self._make(name)
            if not (task.is_open or name in self._restoring or self._waits(name)):
                opening.append(name)
        if not opening:
            return {}
        is_open = sum(task.is_open for task in self._tasks.values())
        check_open_files_of_process(self._application, self._log, is_open + len(opening))
        failed: dict[str, Exception] = {}

        def prepare(name: str) -> None:
            try:
                self._tasks[name].prepare(clock_ms, known.get(name))
            except Exception as error:
                failed[name] = error

        world = self._resources.world
        with world.threads(min(_OPENING_THREADS, len(opening)), "penstock-opening") as threads:
            prepared = [threads.submit(prepare, name) for name in opening]
            world.wait(prepared)
        for each in prepared:
            each.result()
        if len(opening) == 1:
            failed.clear()  # the batch tries once more, and knows what to do with its error
        for name in opening:
            if name not in failed and self._tasks[name].opening is not None:
                self._restoring[name] = self._restores.submit(self._tasks[name].restore_ahead)
        return failed

    def _make(self, name: str) -> TaskWorker:
        partitions = self._partitions[name]
        worker = TaskWorker(
            self._application,
            TaskId.parse(name),
            partitions,
            self._log,
            resources=self._resources,
            task_count=len(self._partitions),
        )
        worker.ask(self._visits)
        return worker

    def _are_current(self, names: Iterable[str]) -> dict[str, bool]:
        """Return, for open tasks, whether no other process has taken them over; one request for all."""
        committers: dict[str, TaskCommitter] = {}
        for name in names:
            task = self._tasks[name]
            if task.is_open and task.committer is not None:
                committers[name] = task.committer
        return dict(zip(committers, self._log.are_current(list(committers.values())), strict=True))

    def _run(
        self, name: str, plan: SlotPlan, known: Commit | None, is_current: bool | None, seconds: float
    ) -> TaskResult:
        if self._waits(name):
            return self._rest(name, plan, {} if known is None else {name: known})
        self._logs.task = name
        task = self._tasks[name]
        ends = {**plan.ends.get(name, {}), **plan.global_ends}
        try:
            report = task.try_batch(
                ends,
                plan.clock_ms,
                known,
                plan.topic_ids,
                is_current=is_current,
                seconds=seconds,
                visit_seconds=inf if plan.restore_seconds is None else plan.restore_seconds / len(self._tasks),
                is_paused=_is_paused(name, plan),
                front=plan.front_of(name),
            )
        except RetryRequested as retry:
            self._wait(name, retry)
            return TaskResult(name)
        except Exception as error:
            return self._failure(name, error)
        if report.opened == FIRST:
            report = report.opened_for(self._host.reason)
        return TaskResult(name, report)

    def _rest(self, name: str, plan: SlotPlan, known: Mapping[str, Commit]) -> TaskResult:
        """Process nothing; repeat the task's commit before the log forgets it."""
        task = self._tasks.get(name)
        if task is not None and name not in self._restoring:
            try:
                task.renew(plan.clock_ms, known.get(name))
            except Exception as error:
                return self._failure(name, error)
        return TaskResult(name)

    def _wait(self, name: str, retry: RetryRequested) -> None:
        self._wait_until[name] = self._resources.world.seconds() + retry.delay_ms / 1000

    def _waits(self, name: str) -> bool:
        until = self._wait_until.get(name)
        if until is None or self._resources.world.seconds() >= until:
            self._wait_until.pop(name, None)
            return False
        return True


def _is_paused(name: str, plan: SlotPlan) -> bool:
    return bool(plan.paused) and TaskId.parse(name).subtopology in plan.paused
