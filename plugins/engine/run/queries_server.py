"""queries_server: a process beside a run that answers queries of its stores over HTTP."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import Application, ConfigError, OpensAlone, Settings
from penstock.hooks import registry
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.state.queries.active_server import own_server
from penstock.plugins.state.queries.settings import (
    QUERIES,
    QUERIES_ACTIONS,
    QUERIES_ACTIONS_TOKEN,
    QUERIES_CONSOLE,
    QUERIES_EXCLUDED,
    QUERIES_MASKED,
    QUERIES_TOKEN,
    store_names,
)
from penstock.stores.memory import MemoryBackend

from .open_application import OpenApplication

if TYPE_CHECKING:
    from penstock.plugins.state.queries.http.server import ServerOptions

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
    from penstock.plugins.state.queries.http.server import ServerCargo, open_socket, url_of

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
    from penstock.plugins.operate.console.pages import pages
    from penstock.plugins.state.queries.http.guard import Address, checked_token
    from penstock.plugins.state.queries.http.server import ServerOptions
    from penstock.plugins.state.queries.queries import Queries

    options = ServerOptions(
        Address.of(text, _OPTION),
        checked_token(QUERIES_TOKEN.of(settings), "setting 'queries_token'"),
        excluded=store_names(QUERIES_EXCLUDED, settings),
        masked=store_names(QUERIES_MASKED, settings),
        actions_token=checked_token(_actions_token(settings), "setting 'queries_actions_token'"),
        pages=pages if QUERIES_CONSOLE.of(settings) else None,
    )
    options.names(Queries.stores_of(application))
    return options


def machine_server_cargo(application: Application) -> bytes:
    """Return the cargo of the servers that a cluster's machines have beside their task hosts; b"" for none.

    They have no pages: the driver's server has them. Raises as `server_options`.
    """
    options = server_options(application)
    if options is None or not can_be_read_beside(application):
        return b""
    from penstock.plugins.engine.host.machine_server import MachineServerCargo

    return pack(MachineServerCargo(application, replace(options, pages=None, actions_token=None)))


class WaitingServer:
    """A server of queries that begins while its run waits for another driver of the application.

    It answers from what this machine has, such as standbys, and forwards the rest to the machine of that driver.
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        self._stack = ExitStack()
        self._has_tried = False
        self._url: str | None = None

    def begin(self) -> None:
        """Begin, unless it has begun. If the address is in use now, as by that driver, the run opens it later."""
        if self._has_tried or not QUERIES.of(self._application.settings):
            return
        self._has_tried = True
        try:
            self._url = self._stack.enter_context(queries_server(self._application, has_tasks_here=True))
        except ConfigError as error:
            _log.info("application %r: queries are not answered while it waits: %s", self._application.id, error)

    def of_run(self, running: OpenApplication) -> AbstractContextManager[str | None]:
        """Return the server of the run: this one, if it has begun."""
        if self._url is not None:
            return nullcontext(self._url)
        return queries_server(running.application, has_tasks_here=True)

    def close(self) -> None:
        """End it; idempotent."""
        self._stack.close()


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
