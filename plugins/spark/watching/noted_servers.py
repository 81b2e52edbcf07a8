"""NotedServers: notes in the log which servers of queries a cluster has, so that they can forward to each other."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence

from penstock import Log, LogError
from penstock.plugins.engine.host.executor_identity import host_name
from penstock.plugins.engine.run.slots import Slots
from penstock.plugins.state.queries.task_servers import TaskServer, note_task_servers

_log = logging.getLogger("penstock.spark")


class NotedServers:
    """The note of one query; the run takes it back.

    `own`: the URL of the driver's server, which has replicas. `tasks`: task ids by slot.
    """

    def __init__(self, application_id: str, log: Log, own: str, tasks: Mapping[int, Sequence[str]]) -> None:
        self._application_id = application_id
        self._log = log
        self._own = TaskServer(own, socket.gethostname())
        self._tasks = tasks
        self._noted: list[TaskServer] = []

    def write(self, slots: Slots) -> None:
        """Note the servers beside the hosts that have the slots now, if they are others than before."""
        found: dict[tuple[str, str], list[str]] = {}
        for slot, url in sorted(slots.servers.items()):
            if url:
                found.setdefault((url, host_name(slots.executors[slot])), []).extend(self._tasks[slot])
        servers = [*(TaskServer(*where, tuple(tasks)) for where, tasks in found.items()), self._own]
        if servers == self._noted:
            return
        try:
            note_task_servers(self._application_id, self._log, servers)
            self._noted = servers
        except LogError as error:  # the next batch tries again; servers that do not answer are left alone
            _log.debug("the servers of queries could not be noted: %s", error)
