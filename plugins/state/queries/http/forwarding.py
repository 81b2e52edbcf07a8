"""Forwarding: asks the servers beside the tasks, for a server that cannot answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..copies import AHEAD_SHARE, WouldWait
from ..queries import Queries
from ..task_servers import TaskServer
from .connections import Answer, Connections

_log = logging.getLogger("penstock.queries")

FORWARDED = "x-penstock-forwarded"
"""The header of a request that a server has forwarded: it is not forwarded again. It has the id that the log has the
application under."""
_LOOK_SECONDS = 1.0
"""Seconds between two looks at where the tasks run."""
_SILENT_SECONDS = 5.0
"""How long a server that did not answer is not asked again."""
_NOT_LET_IN = (401, 403)
_PASSED_ON = ("authorization", "accept", "content-type")


class Sent(NamedTuple):
    """A request as it came: path and query encoded."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""


class Forwarding:
    """Finds the other servers, and asks them. `own`: the URL of this one, as others know it."""

    def __init__(self, queries: Queries, own: str | None) -> None:
        self.own = own
        self._queries = queries
        self._seconds = queries.seconds
        self._looked_at = float("-inf")
        self._servers: Sequence[TaskServer] = ()
        self._silent_until: dict[str, float] = {}
        self._connections: dict[str, Connections] = {}
        self._refusing: set[str] = set()

    def is_for_us(self, forwarded: str | None) -> bool:
        """Return whether a request is for this application, by its header (None: it comes from a client)."""
        # An earlier penstock sends no id.
        return forwarded is None or forwarded in ("1", self._queries.application.id)

    def others(self, task: str | None, *, at_once: bool = False) -> list[str]:
        """Return the URLs of the other servers that can answer for a task (None: for all), the best one first.

        Servers that did not answer a moment ago are left out. Any thread may call it. Raises LogError; with `at_once`
        WouldWait instead of asking the log.
        """
        now = self._seconds()
        age = now - self._looked_at
        if at_once and age > AHEAD_SHARE * _LOOK_SECONDS:
            self._queries.ahead.start("servers", self._look)
        if age > _LOOK_SECONDS:
            if at_once:
                raise WouldWait
            self._look()
        found = [each.url for each in self._servers if each.has(task) and each.url != self.own]
        return [url for url in found if now >= self._silent_until.get(url, now)]

    def _look(self) -> None:
        self._looked_at = self._seconds()
        self._servers = self._queries.task_servers()

    async def ask(self, url: str, sent: Sent) -> Answer | None:
        """Return the status and the JSON of another server's answer; None if it does not answer.

        One that refuses the token of the request, or that it has none, does not: the client has nothing to do with it.
        """
        found = self._connections.get(url)
        if found is None:
            known = {each.url for each in self._servers}
            for gone in [each for each in self._connections if each not in known]:
                self._connections.pop(gone).close()
            found = self._connections[url] = Connections(url)
        headers = [(name, value) for name in _PASSED_ON if (value := sent.headers.get(name)) is not None]
        headers.append((FORWARDED, self._queries.application.id))
        answer = await found.ask(sent.method, sent.target, headers, sent.body)
        if answer is None:
            self._silent_until[url] = self._seconds() + _SILENT_SECONDS
            return None
        self._silent_until.pop(url, None)
        if answer[0] not in _NOT_LET_IN:
            self._refusing.discard(url)
            return answer
        if url not in self._refusing:
            _log.warning("%s refuses what is forwarded to it (status %d): give both servers one token", url, answer[0])
            self._refusing.add(url)
        return None

    def close(self) -> None:
        """Close the connections, in their event loop."""
        for each in self._connections.values():
            each.close()
