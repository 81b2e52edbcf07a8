"""RunServer: a process beside a run that answers queries of its stores over HTTP."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import Application, ConfigError, OpensAlone, Settings
from penstock.hooks import registry
from penstock.plugins.engine.host.slot_engine import OpensCompanion
from penstock.plugins.engine.run.companion import Companion, OpenApplication, RunView, companions
from penstock.plugins.engine.task.shipping import pack
from penstock.stores.memory import MemoryBackend

from .noted_servers import noted_server, own_server
from .settings import (
    QUERIES,
    QUERIES_ACTIONS,
    QUERIES_ACTIONS_TOKEN,
    QUERIES_EXCLUDED,
    QUERIES_MASKED,
    QUERIES_TOKEN,
    store_names,
)

if TYPE_CHECKING:
    from .http.server import ServerOptions

_OPTION = "setting 'queries'"
_AGAIN_SECONDS = 1.0
"""How long to wait before a process is started in place of one that has ended."""
_END_SECONDS = 10.0

_log = logging.getLogger("penstock.queries")


@contextmanager
def queries_server(application: Application, *, has_tasks_here: bool, name: str = "") -> Iterator[str | None]:
    """Answer queries of an application on the address of the setting `queries`, until the end of the block.

    Returns the URL for other machines; without this setting nothing happens, and it is None. `has_tasks_here`: its
    tasks run on this machine, so their local state can be read; else, and where a store backend does not allow that,
    the process has replicas. It is a process of its own, so that queries do not take the interpreter of the tasks.
    `name`: the name of this machine for others, unless `application_server` says it. Raises as `server_options`, and
    ConfigError for an address that cannot be opened.
    """
    options = server_options(application)
    if options is None:
        yield None
        return
    from .http.server import ServerCargo, open_socket, url_of

    with open_socket(options, _OPTION) as listening:
        _log.info("application %r: its stores can be asked at %s", application.id, url_of(listening, options))
        url = own_server(application) or url_of(listening, options, name)
        is_local = has_tasks_here and can_be_read_beside(application)
        server = _Server(listening.fileno(), pack(ServerCargo(application, options, is_local, url)))
        try:
            yield url
        finally:
            server.close()


def server_options(application: Application) -> ServerOptions | None:
    """Return how servers of an application's queries listen, and what they show; None without the setting `queries`.

    Raises ConfigError for an address that others reach without a token, and for stores that are not there;
    MissingPackageError where a library is missing.
    """
    settings = application.settings
    text = QUERIES.of(settings)
    if not text:
        return None
    # Few runs have one, and these take a part of a run's start.
    from .http.guard import Address, checked_token
    from .http.server import ServerOptions
    from .queries import Queries

    options = ServerOptions(
        Address.of(text, _OPTION),
        checked_token(QUERIES_TOKEN.of(settings), "setting 'queries_token'"),
        excluded=store_names(QUERIES_EXCLUDED, settings),
        masked=store_names(QUERIES_MASKED, settings),
        actions_token=checked_token(_actions_token(settings), "setting 'queries_actions_token'"),
        pages=next((found for each in reversed(companions()) if (found := each.pages(application)) is not None), None),
    )
    options.names(Queries.stores_of(application))
    return options


def opens_machine_server(application: Application) -> OpensCompanion | None:
    """Return what opens the servers that a cluster's machines have beside their task hosts; None for none.

    They have no pages: the driver's server has them. Raises as `server_options`.
    """
    options = server_options(application)
    if options is None or not can_be_read_beside(application):
        return None
    from .machine_server import MachineServer, MachineServerCargo

    cargo = MachineServerCargo(application, replace(options, pages=None, actions_token=None))
    return partial(MachineServer, pack(cargo))


class RunServer(Companion):
    """The server of a run's queries, and the note of it in the log for servers on other machines.

    Where tasks are to run on this machine, it begins while the run waits for another driver of the application: it
    answers from what this machine has, such as standbys, and forwards the rest to the machine of that driver.
    """

    def __init__(self, run: RunView) -> None:
        super().__init__(run)
        self._stack = ExitStack()
        self._has_tried = False
        self._url: str | None = None

    def around(self) -> ExitStack:
        return self._stack

    def wait(self) -> None:
        """Begin, unless it has begun. If the address is in use now, as by that driver, the run opens it later."""
        application = self.run.application
        if self._has_tried or not self.run.has_tasks_here or not QUERIES.of(application.settings):
            return
        self._has_tried = True
        try:
            self._url = self._stack.enter_context(queries_server(application, has_tasks_here=True))
        except ConfigError as error:
            _log.info("application %r: queries are not answered while it waits: %s", application.id, error)

    @contextmanager
    def beside(self, running: OpenApplication) -> Iterator[None]:
        with ExitStack() as stack:
            running.server = self._url
            if self._url is None:
                serving = queries_server(
                    running.application, has_tasks_here=self.run.has_tasks_here, name=running.machine
                )
                running.server = stack.enter_context(serving)
            stack.enter_context(noted_server(running.application, running.log, running.lease))
            yield

    @classmethod
    def queries(cls, application: Application) -> Any:
        from .queries import Queries  # few runs are asked

        return Queries.of_this_machine(application)


def _actions_token(settings: Settings) -> str | None:
    if not QUERIES_ACTIONS.of(settings):
        return None
    token = QUERIES_ACTIONS_TOKEN.of(settings)
    if token is None:
        raise ConfigError(
            "setting 'queries_actions': requests that act need a token of their own: set queries_actions_token, of 16 "
            "or more characters"
        )
    return token


def can_be_read_beside(application: Application) -> bool:
    """Return whether another process can read the local state of all stores beside their tasks."""
    default = application.settings.store_backend
    program = application.program
    stores = [each for part in program.subtopologies for each in part.stores]
    stores += [each.store for each in program.global_stores]
    for name in {each.backend or default for each in stores}:
        factory = registry().load("store backend", name)
        if factory is MemoryBackend or (isinstance(factory, OpensAlone) and factory.exclusive):
            return False
    return True


class _Server:
    """The process, and another one when it has ended."""

    def __init__(self, descriptor: int, cargo: bytes) -> None:
        self._command = [sys.executable, "-P", "-m", "penstock.plugins.state.queries.http", str(descriptor)]
        self._descriptor = descriptor
        self._cargo = cargo
        self._ending = threading.Event()
        self._changing = threading.Lock()
        self._process = self._started()
        self._thread = threading.Thread(target=self._watch, name="penstock-queries", daemon=True)
        self._thread.start()

    def _started(self) -> subprocess.Popen[bytes]:
        # A session of its own, as task hosts have. Linux divides the processors among sessions (autogroup), so it need
        # not wait for what else that of the run does; and Ctrl-C is the run's, which ends it.
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, pass_fds=[self._descriptor], start_new_session=True
        )

    def _watch(self) -> None:
        while True:
            stdin = self._process.stdin
            assert stdin is not None
            with suppress(BrokenPipeError):
                stdin.write(len(self._cargo).to_bytes(8, "big") + self._cargo)
                stdin.flush()
            code = self._process.wait()
            with suppress(BrokenPipeError):
                stdin.close()
            if self._ending.is_set():
                return
            _log.warning("the process that answers queries has ended (%d): another one is started", code)
            if not self._has_started_again():
                return

    def _has_started_again(self) -> bool:
        """Start another process, however often that fails; return False if there is to be none any more."""
        while True:
            self._ending.wait(_AGAIN_SECONDS)
            with self._changing:
                if self._ending.is_set():
                    return False
                try:
                    self._process = self._started()
                    return True
                except OSError as error:
                    _log.warning("the process that answers queries cannot be started, which is tried again: %s", error)

    def close(self) -> None:
        """End the process; nothing of it is left when this returns."""
        with self._changing:
            self._ending.set()
            process = self._process
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._thread.join()
