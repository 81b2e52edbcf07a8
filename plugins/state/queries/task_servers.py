"""TaskServer: a server of queries beside the tasks of an application, as its run notes it in the log for the others."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from penstock import Log
from penstock.plugins.engine.task import notes


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


def note_task_servers(application_id: str, log: Log, servers: Sequence[TaskServer]) -> None:
    """Note the servers of a run in the log; the caller has the application's lease. Raises LogError."""
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
