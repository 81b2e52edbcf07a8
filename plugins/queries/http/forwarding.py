"""Forwarding: asks the server on the machine where the application runs, for a server that cannot answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.plugins.client.client import Client
from penstock.plugins.client.entries import QueryError

from ..queries import Queries

FORWARDED = "x-penstock-forwarded"
"""The header of a request that a server has forwarded: it is not forwarded again."""
_LOOK_SECONDS = 1.0
"""Seconds between two looks at where the application runs."""
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
    """Finds the other server, and asks it. `own`: the URL of this one, as others know it. Any thread calls it."""

    def __init__(self, queries: Queries, own: str | None) -> None:
        self.own = own
        self._queries = queries
        self._seconds = queries.seconds
        self._looked_at = self._silent_until = float("-inf")
        self._client: tuple[str, Client] | None = None

    def other(self) -> str | None:
        """Return the URL of the server where the application runs; None if that is this one, or unknown, or silent."""
        now = self._seconds()
        if now - self._looked_at > _LOOK_SECONDS:
            self._looked_at = now
            url = self._queries.active_server()
            if url is None or url == self.own:
                self._client = None
            elif self._client is None or self._client[0] != url:
                self._client = url, Client(url, timeout="10s")
        return None if self._client is None or now < self._silent_until else self._client[0]

    def ask(self, sent: Sent) -> tuple[int, bytes] | None:
        """Return the status and the JSON of the other server's answer; None if it does not answer."""
        client = self._client
        if client is None:
            return None
        headers = {name: value for name, value in sent.headers.items() if name in _PASSED_ON}
        try:
            return client[1].exchange(sent.method, sent.target, sent.body, {**headers, FORWARDED: "1"})
        except QueryError:
            self._silent_until = self._seconds() + _SILENT_SECONDS
            return None
