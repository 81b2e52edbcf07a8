"""Engine: the interface of an engine, which runs applications. StartedRun: the handle of a run in a thread."""

from __future__ import annotations

import logging
import os
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from penstock import Application, Clock, ConfigError, Log, Record, RuntimeUnavailableError
from penstock.plugins.engine.program import topic_records
from penstock.plugins.engine.program.pausing import pause, resume
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.engine.program.topic_records import Row
from penstock.plugins.engine.task.locations import open_log

from .companion import companions
from .order import FAILED, RUNNING, STARTING, STOPPED, STOPPING, Lifecycle, RunOrder, Trigger
from .progress import RunProgress, RunSummary

_EXIT_SECONDS = 30.0
"""How long the end of the process waits for a run that nobody has stopped."""

_log = logging.getLogger("penstock.runs")

Work = Callable[[threading.Event, Callable[[], None]], RunSummary]
"""Runs an application until the event is set; calls the function when its tasks begin to run."""

_left: weakref.WeakSet[_Run] = weakref.WeakSet()
"""The runs of this process that have not ended."""


class _Run:
    """The thread of a run, and its result. It has no reference to the handle, which may be forgotten."""

    def __init__(self, application_id: str, work: Work) -> None:
        self.application_id = application_id
        self.process = os.getpid()
        self.stop = threading.Event()
        self.has_started = threading.Event()
        self.has_ended = threading.Event()
        self.is_running = False
        self.error: BaseException | None = None
        self.summary: RunSummary | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name=f"penstock-run-{application_id}", daemon=True)

    def start(self) -> None:
        _refuse_forks()
        _stop_at_exit()
        _left.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.summary = self._work(self.stop, self._note_start)
        except BaseException as error:
            self.error = error
            # A service may ask nobody how its run is; who does gets the error itself.
            _log.error("application %r: the run has failed: %s", self.application_id, error, exc_info=True)
        finally:
            _left.discard(self)
            self.has_ended.set()
            self.has_started.set()

    def _note_start(self) -> None:
        self.is_running = True
        self.has_started.set()

    def end(self, seconds: float | None) -> bool:
        self.stop.set()
        return self.has_ended.wait(seconds)


class StartedRun:
    """A run in the background. Leaving its `with` or `async with` block stops it.

    Entering the block waits until the tasks run, and raises what prevented it; giving that up (Ctrl-C, a cancelled
    coroutine) stops the run. Leaving it raises the error of a failed application, unless the block itself failed.
    """

    def __init__(self, application: Application, work: Work, lifecycle: Lifecycle) -> None:
        # The run goes on where the process was when it began.
        self.application = application.with_settings(data_dir=str(Path(application.settings.data_dir).absolute()))
        self._lifecycle = lifecycle
        self._queries: Any = None
        self._opening_queries = threading.Lock()
        self._run = _Run(application.id, work)
        self._run.start()
        self._forgotten = weakref.finalize(self, _forgotten, self._run)
        self._forgotten.atexit = False

    @property
    def state(self) -> str:
        """Return "starting", "rebalancing", "running", "stopping", "stopped" or "failed"; see docs/running.md."""
        self._check_process()
        run = self._run
        if run.has_ended.is_set():
            return STOPPED if run.error is None else FAILED
        if run.stop.is_set():
            return STOPPING
        state = self._lifecycle.state
        # Another package's engine need not keep a lifecycle.
        return RUNNING if run.is_running and state == STARTING else state

    @property
    def error(self) -> BaseException | None:
        """The error that ended the run; None while it runs, and when it ended without one."""
        self._check_process()
        return self._run.error

    @property
    def queries(self) -> Any:
        """The stores of the application's tasks on this machine (`penstock.queries.Queries`), until the run ends.

        Raises RuntimeUnavailableError after that, and LogError.
        """
        self._check_process()
        with self._opening_queries:
            if self._run.has_ended.is_set():
                raise RuntimeUnavailableError(
                    f"application {self._run.application_id!r} does not run any more: its stores cannot be asked"
                )
            if self._queries is None:
                opened = (companion.queries(self.application) for companion in reversed(companions()))  # ours last
                self._queries = next((each for each in opened if each is not None), None)
                if self._queries is None:
                    raise ConfigError("no installed companion answers queries: `penstock plugins` lists companions")
            return self._queries

    def store(self, name: str, *, isolation: str = "read_committed", **options: Any) -> Any:
        """Return a store of the application, to be read at committed versions; `options` are those of `Queries.store`.

        Raises as `queries` and `Queries.store`.
        """
        if isolation != "read_committed":  # the default of any companion's queries
            options["isolation"] = isolation
        return self.queries.store(name, **options)

    @property
    def paused(self) -> frozenset[int]:
        """The numbers of fully paused sub-topologies: no task processes their records any more."""
        return self._lifecycle.paused

    def pause(self, *subtopologies: int) -> None:
        """Process no more records of these sub-topologies, or of any, until `resume`; returns before that has effect.

        It is a note in the log: a run that is started later is paused, too. Raises ConfigError for a number that the
        program does not have, and LogError.
        """
        self._change_pauses(pause, subtopologies)

    def resume(self, *subtopologies: int) -> None:
        """End the pause of these sub-topologies, or of all. Raises as `pause`."""
        self._change_pauses(resume, subtopologies)

    def _change_pauses(
        self, change: Callable[[Application, Log, Sequence[int]], object], subtopologies: Sequence[int]
    ) -> None:
        self._check_process()
        with closing(open_log(self.application.settings)) as log:
            change(stored_application(self.application, log), log, subtopologies)
        self._lifecycle.looks_at_pauses.set()

    def wait(self, timeout: float | None = None) -> RunSummary:
        """Wait until the run ends by itself, or is stopped; return its summary.

        Raises the error of a failed application, and TimeoutError after `timeout` seconds.
        """
        self._check_process()
        if not self._run.has_ended.wait(timeout):
            raise TimeoutError(f"application {self._run.application_id!r} still runs after {timeout:g} s")
        self._forgotten.detach()
        self._close_queries()
        if self._run.error is not None:
            raise self._run.error
        assert self._run.summary is not None
        return self._run.summary

    def stop(self, timeout: float | None = None) -> RunSummary:
        """Let tasks commit, stop the run, and return its summary; a second call changes nothing. Raises as `wait`."""
        self._check_process()
        self._run.stop.set()
        return self.wait(timeout)

    def _close_queries(self) -> None:
        with self._opening_queries:
            queries, self._queries = self._queries, None
        if queries is not None:
            queries.close()

    def _check_process(self) -> None:
        if os.getpid() != self._run.process:
            raise RuntimeUnavailableError(
                f"application {self._run.application_id!r} runs in process {self._run.process}, and this process "
                f"({os.getpid()}) was forked from it: a fork has no threads, so nothing runs here. Start the "
                "application after the fork, in one of the processes"
            )

    def _enter(self) -> None:
        self._check_process()
        self._run.has_started.wait()
        if self._run.error is not None:
            self._forgotten.detach()
            raise self._run.error

    def _leave(self, error: BaseException | None) -> None:
        if os.getpid() != self._run.process:
            return  # a fork that leaves the block, and in which nothing runs
        try:
            self.stop()
        except BaseException as failure:
            if error is None:
                raise
            error.add_note(f"The application failed as well: {type(failure).__name__}: {failure}")

    def __enter__(self) -> StartedRun:
        try:
            self._enter()
        except Exception:
            raise
        except BaseException as given_up:  # Ctrl-C, or what a handler of a signal raises
            self._leave(given_up)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    async def __aenter__(self) -> StartedRun:
        import asyncio  # takes longer than all of this module, and few need it

        try:
            await asyncio.to_thread(self._enter)
        except asyncio.CancelledError as given_up:
            # A thread waits for the start, and the run would begin later: end both.
            self._run.stop.set()
            await asyncio.to_thread(self._leave, given_up)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self._leave, error)


def _refuse_forks() -> None:
    """Raise RuntimeUnavailableError in a process that was forked while an application ran in its parent."""
    found = next((each for each in _left if each.process != os.getpid()), None)
    if found is not None:
        raise RuntimeUnavailableError(
            f"this process ({os.getpid()}) was forked from process {found.process} while application "
            f"{found.application_id!r} ran there, and imports, locks and connections of its threads were copied half "
            "done: no application can start here. Fork before the first start, or make the process by `spawn`"
        )


def _forgotten(run: _Run) -> None:
    """Stop a run after its handle is gone."""
    if os.getpid() == run.process and not run.stop.is_set():
        run.stop.set()
        _warn(run)


def _warn(run: _Run) -> None:
    warnings.warn(
        f"application {run.application_id!r} was started and never stopped: use `with application.start() as "
        "running:`, or call `running.stop()`",
        ResourceWarning,
        stacklevel=2,
    )


def _stop_at_exit() -> None:
    """Stop runs at the end of this process, before Python ends its pools of threads."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        # `atexit` comes too late: threads cannot be started any more then, and commits need them.
        threading._register_atexit(_stop_left)  # type: ignore[attr-defined]


_is_registered = False


def _stop_left() -> None:
    runs = [each for each in _left if each.process == os.getpid()]
    for run in runs:
        if not run.stop.is_set():
            _warn(run)
        run.stop.set()
    for run in runs:
        run.end(_EXIT_SECONDS)


class Engine(ABC):
    """Runs applications. `options` names what `run` takes besides an order; the engine's settings are Settings."""

    title: ClassVar[str] = "the engine"
    """How people call it."""
    options: ClassVar[Collection[str]] = ()

    @abstractmethod
    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        """Run `application` until it is done or stopped, and return its summary.

        Raises TopologyError for topics that are missing, IncompatibleStateError when the program no longer fits what it
        saved, LogError when another driver runs the application, and the error that a task failed with.
        """

    def run_with(
        self,
        application: Application,
        trigger: str,
        *,
        on_progress: Callable[[RunProgress], None] | None = None,
        clock: Clock | None = None,
        stop: threading.Event | None = None,
        wait: bool = False,
        until: str | None = None,
        **options: Any,
    ) -> RunSummary:
        """Run `application` as `penstock.run` does."""
        self.check_options(application, options)
        return self.run(application, RunOrder(Trigger.of(trigger, until), on_progress, clock, stop, wait), **options)

    def start(
        self,
        application: Application,
        trigger: str,
        *,
        on_progress: Callable[[RunProgress], None] | None = None,
        clock: Clock | None = None,
        wait: bool = False,
        until: str | None = None,
        **options: Any,
    ) -> StartedRun:
        """Start `application` as `Application.start` does."""
        self.check_options(application, options)
        when, lifecycle = Trigger.of(trigger, until), Lifecycle()

        def work(stop: threading.Event, on_start: Callable[[], None]) -> RunSummary:
            order = RunOrder(when, on_progress, clock, stop, wait, on_start, lifecycle)
            return self.run(application, order, **options)

        return StartedRun(application, work, lifecycle)

    def produce(self, application: Application, topic: str, rows: Iterable[Row], **options: Any) -> int:
        """Append rows to a topic as `Application.produce` does."""
        return topic_records.produce(application, topic, rows, **options)

    def read(self, application: Application, topic: str, **options: Any) -> list[Record]:
        """Return the records of a topic as `Application.read` does."""
        return topic_records.read(application, topic, **options)

    def check_options(self, application: Application, options: Collection[str]) -> None:
        """Raise ConfigError for options that are not the engine's."""
        for option in options:
            if option not in self.options:
                known = f"its options are {', '.join(sorted(self.options))}" if self.options else "it has no options"
                raise ConfigError(
                    f"application {application.id!r}: {option!r} is no option of {self.title}: {known}. Leave it out, "
                    "or choose another engine (setting 'engine')"
                )
