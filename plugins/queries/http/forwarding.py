"""Forwarding: asks the servers beside the tasks, for a server that cannot answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.plugins.client.client import Client
from penstock.plugins.client.entries import QueryError

from ..queries import Queries
from ..task_servers import TaskServer

FORWARDED = "x-penstock-forwarded"
"""The header of a request that a server has forwarded: it is not forwarded again."""
_LOOK_SECONDS = 1.0
"""Seconds between two looks at where the tasks run."""
_SILENT_SECONDS = 5.0
"""How long a server that did not answer is not asked again."""
_PASSED_ON = ("authorization", "accept", "content-type")


class Sent(NamedTuple):
    """A request as it came: path and query encoded."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None = None


class Forwarding:
    """Finds the other servers, and asks them. `own`: the URL of this one, as others know it. Any thread calls it."""

    def __init__(self, queries: Queries, own: str | None) -> None:
        self.own = own
        self._queries = queries
        self._seconds = queries.seconds
        self._looked_at = float("-inf")
        self._servers: Sequence[TaskServer] = ()
        self._silent_until: dict[str, float] = {}
        self._clients: dict[str, Client] = {}

    def others(self, task: str | None) -> list[str]:
        """Return the URLs of the other servers that can answer for a task (None: for all), the best one first.

        Servers that did not answer a moment ago are left out. Raises LogError.
        """
        now = self._seconds()
        if now - self._looked_at > _LOOK_SECONDS:
            self._looked_at = now
            self._servers = self._queries.task_servers()
            urls = {each.url for each in self._servers}
            for url in [each for each in self._clients if each not in urls]:
                self._clients.pop(url).close()
        found = [each.url for each in self._servers if each.has(task) and each.url != self.own]
        return [url for url in found if now >= self._silent_until.get(url, now)]

    def ask(self, url: str, sent: Sent) -> tuple[int, bytes] | None:
        """Return the status and the JSON of another server's answer; None if it does not answer."""
        client = self._clients.get(url)
        if client is None:
            client = self._clients[url] = Client(url, timeout="10s")
        headers = {name: value for name, value in sent.headers.items() if name in _PASSED_ON}
        try:
            answer = client.exchange(sent.method, sent.target, sent.body, {**headers, FORWARDED: "1"})
        except QueryError:
            self._silent_until[url] = self._seconds() + _SILENT_SECONDS
            return None
        self._silent_until.pop(url, None)
        return answer
