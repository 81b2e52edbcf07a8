"""MachineServer: the server of queries beside the task hosts of one machine, a process that they start and share."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import Application, ConfigError
from penstock.plugins.engine.host.client import HostClient, HostSpec
from penstock.plugins.engine.host.executor_identity import reachable_name
from penstock.plugins.engine.host.place import digest_of
from penstock.plugins.engine.host.slot_engine import Cargo, HostCompanion, HostEngine, HostInfo
from penstock.plugins.engine.task.locations import state_directory
from penstock.plugins.engine.task.process_resources import tune_garbage_collector_to_answer
from penstock.support.repeats import Repeats

from .http.server import Server, ServerOptions, open_socket, url_of
from .queries import Queries

if TYPE_CHECKING:
    import socket

_LOOK_SECONDS = 1.0
"""Seconds between two looks at whether the server is there; each renews its lease."""
_LEASE_SECONDS = 10.0
"""How long the server stays when no task host of the machine is there."""
_SILENT_SECONDS = 12.0
"""Seconds without a sign after which the server is frozen, and is killed."""

_log = logging.getLogger("penstock.queries")


@dataclass(frozen=True)
class ServerRequest:
    """A task host's question for the server's URL.

    `name`: the name of the machine for other machines. `port`: the port that it had before it was lost; 0: none.
    """

    name: str
    port: int


@dataclass(frozen=True)
class MachineServerCargo(Cargo):
    """The cargo of the server: the application, and how the server listens and what it shows."""

    application: Application
    options: ServerOptions

    def engine(self, host: HostInfo) -> HostEngine:
        return _ServerEngine(self)


class _ServerEngine(HostEngine):
    """Reads the local state of the tasks of its machine. A request opens the server, and returns its URL."""

    def __init__(self, cargo: MachineServerCargo) -> None:
        self._cargo = cargo
        self._queries: Queries | None = None
        self._socket: socket.socket | None = None
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._url = ""
        sys.setswitchinterval(0.001)  # the event loop waits for threads that read ranges no longer than this

    def handle(self, request: ServerRequest) -> tuple[str, int]:
        """Return the URL for other machines, and the port. Raises ConfigError for an address that cannot be opened."""
        if self._thread is None or not self._thread.is_alive():
            self.close()
            self._open(request)
        assert self._socket is not None
        return self._url, self._socket.getsockname()[1]

    def _open(self, request: ServerRequest) -> None:
        options = self._cargo.options
        try:
            self._socket = open_socket(options.at_port(request.port or options.address.port), "setting 'queries'")
        except ConfigError:
            if options.address.port or not request.port:
                raise
            self._socket = open_socket(options, "setting 'queries'")
        self._url = url_of(self._socket, options, request.name)
        self._queries = Queries.of_this_machine(self._cargo.application)
        self._server = Server(self._queries, options, self._socket, self._url)
        tune_garbage_collector_to_answer()
        self._thread = threading.Thread(target=self._server.run, name="penstock-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.stop()
            self._thread.join()
        if self._queries is not None:
            self._queries.close()
        if self._socket is not None:
            self._socket.close()
        self._server = self._thread = self._queries = self._socket = None


class MachineServer(HostCompanion):
    """Keeps the server of this machine going for one task host: finds it, or starts it, also when it was lost.

    The hosts of a machine with the same local state share a server. It ends when none of them has asked for ten
    seconds, and with the executor whose host has started it; then another host starts it again.
    """

    def __init__(self, cargo: bytes, application: Application, host: HostInfo) -> None:
        state = os.path.realpath(state_directory(application.settings))
        settings = application.settings
        self._application_id = application.id
        self._client = HostClient(
            HostSpec(
                digest_of("queries", application.id, settings.log, state),
                -1,
                hashlib.sha256(cargo).hexdigest(),
                cargo,
                f"application {application.id!r}",
                host.watched,
                lease_seconds=_LEASE_SECONDS,
                role="server of queries",
            )
        )
        self._name = reachable_name([each.pid for each in host.watched])
        self._repeats = Repeats(host.world.clock.now_ms)
        self._port = 0
        self._url = ""
        self._has_looked = threading.Event()
        self._ticker = host.world.ticker("penstock-queries", _LOOK_SECONDS, self._look)

    def _look(self) -> None:
        try:
            self._url, self._port = self._client.call(ServerRequest(self._name, self._port), "first", _SILENT_SECONDS)
        except Exception as error:  # the tasks go on, and the next look tries again
            self._url = ""
            self._repeats.log(
                _log, logging.WARNING, ("queries", type(error)),
                "application %r: queries are not answered beside the tasks on %s: %s",
                self._application_id, self._name, error,
            )  # fmt: skip
        self._has_looked.set()

    def url(self, most_seconds: float = 0.0) -> str:
        self._has_looked.wait(most_seconds)
        return self._url

    def close(self) -> None:
        """Let it go: it ends when no other host needs it."""
        self._ticker.close()
        self._client.close()
