"""The server on the machine where an application runs, as its run notes it in the log for servers on other machines."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from penstock import Application, ConfigError, Lease, Log, LogError
from penstock.plugins.engine.task import notes

from .settings import APPLICATION_SERVER


def own_server(application: Application) -> str | None:
    """Return the URL at which others reach the server of this machine. Raises ConfigError for one that is none."""
    text = APPLICATION_SERVER.of(application.settings)
    if not text:
        return None
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and parts.hostname and ("://" in text or parts.port)
    except ValueError:
        is_right = False
    if not is_right:
        raise ConfigError(f"setting 'application_server' {text!r}: expected HOST:PORT, http://... or https://...")
    return url


def active_server(application: Application, log: Log) -> str | None:
    """Return the URL of the server on the machine where the application runs; None if none is noted."""
    return notes.APPLICATION_SERVER.read(application.id, log) or None


@contextmanager
def noted_server(application: Application, log: Log, lease: Lease) -> Iterator[None]:
    """Note the server of this machine for the block, in which the caller has the application's lease.

    Servers beside tasks that are noted at its beginning, by a run that was killed, or at its end are taken back. Where
    the lease was lost, what is noted at the end is of the next run, and stays.
    """
    own = own_server(application)
    before = active_server(application, log)
    if own != before:
        notes.APPLICATION_SERVER.write(application.id, lease, own or "")
    _take_back_task_servers(application, log, lease)
    try:
        yield
    finally:
        with suppress(LogError):  # others find out when they ask it
            if own is not None:
                notes.APPLICATION_SERVER.take_back(application.id, lease)
            _take_back_task_servers(application, log, lease)


def _take_back_task_servers(application: Application, log: Log, lease: Lease) -> None:
    if task_servers(application.id, log):
        note_task_servers(application.id, lease, [])


@dataclass(frozen=True)
class TaskServer:
    """A server of queries at `url`, on the machine of the host name `machine`.

    `tasks`: the tasks whose local state it reads; None: it has replicas of all tasks.
    """

    url: str
    machine: str
    tasks: tuple[str, ...] | None = None

    def has(self, task: str | None) -> bool:
        """Return whether it can answer for a task; None: for all tasks."""
        return self.tasks is None or task in self.tasks

    @property
    def is_reachable(self) -> bool:
        """Whether this process can reach it: a loopback address only leads to a server of the same machine."""
        return self.machine == socket.gethostname() or not is_loopback(urlsplit(self.url).hostname or "")


def note_task_servers(application_id: str, log: Log | Lease, servers: Sequence[TaskServer]) -> None:
    """Note the servers of a run in the log. Raises LogError.

    A run gives its lease: once that was lost, FencedError is raised, and the servers of the next run stay noted.
    """
    if servers:
        notes.TASK_SERVERS.write(application_id, log, [asdict(each) for each in servers])
    else:
        notes.TASK_SERVERS.take_back(application_id, log)


def task_servers(application_id: str, log: Log) -> list[TaskServer]:
    """Return the servers that the application's run has noted. Raises LogError."""
    noted = notes.TASK_SERVERS.read(application_id, log)
    return [TaskServer(**{**each, "tasks": each["tasks"] and tuple(each["tasks"])}) for each in noted]


def is_loopback(host: str) -> bool:
    """Return whether only processes of the same machine reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
