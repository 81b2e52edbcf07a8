"""Forwarding: asks the servers beside the tasks, for a server that cannot answer."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from penstock.support.packages import needed

from ..copies import NoteReader
from ..noted_servers import TaskServer
from ..queries import Queries

_log = logging.getLogger("penstock.queries")

FORWARDED = "x-penstock-forwarded"
"""The header of a request that a server has forwarded: it is not forwarded again. It has the id that the log has the
application under."""
ASKED_WITHIN = "x-penstock-asked-within"
"""The header of a forwarded request: an answer that may not be stale is one for which the log was asked within so many
seconds."""
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
    asked_within: float | None = None

    def for_followers(self, at_least: Sequence[str], asked_within: float | None) -> Sent:
        """Return the request with more of the parameter `at_least`, and within how many seconds the log was asked."""
        made = self if asked_within is None else self._replace(asked_within=asked_within)
        if not at_least:
            return made
        more = urlencode([("at_least", each) for each in at_least])
        return made._replace(target=f"{self.target}{'&' if '?' in self.target else '?'}{more}")


class Forwarding:
    """Finds the other servers, and asks them. `own`: the URL of this one, as others know it."""

    def __init__(self, queries: Queries, own: str | None) -> None:
        self.own = own
        self._queries = queries
        self._seconds = queries.seconds
        self._note_reader = NoteReader("servers", self._look, queries.ahead, self._seconds)
        self._servers: Sequence[TaskServer] = ()
        self._silent_until: dict[str, float] = {}
        self._connections: dict[str, Connections] = {}
        self._refusing: set[str] = set()

    def is_for_us(self, forwarded: str | None) -> bool:
        """Return whether a request is for this application, by its header (None: it comes from a client)."""
        # An earlier penstock sends no id.
        return forwarded is None or forwarded in ("1", self._queries.application.id)

    def since(self, asked_within: str | None) -> float:
        """Return the time since which the log was asked for an answer, by the header of a request."""
        try:
            return -inf if asked_within is None else self._seconds() - max(0.0, float(asked_within))
        except ValueError:
            return -inf

    def others(self, task: str | None) -> list[str]:
        """Return the URLs of the other servers that can answer for a task (None: for all), the best one first.

        Servers that did not answer a moment ago are left out. Any thread may call it. Raises LogError, and WouldWait.
        """
        self._note_reader.renew()
        now = self._seconds()
        found = [each.url for each in self._servers if each.has(task) and each.url != self.own]
        return [url for url in found if now >= self._silent_until.get(url, now)]

    def _look(self) -> None:
        self._note_reader.at = self._seconds()
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
        if sent.asked_within is not None:
            headers.append((ASKED_WITHIN, f"{sent.asked_within:.6f}"))
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


with needed("the server of queries", "serve"):
    import httptools


Answer = tuple[int, bytes]
"""The status of an answer, and its body."""
_TIMEOUT_SECONDS = 10.0


class Connections:
    """The open connections to one server at `url`. One event loop calls all methods."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)
        self._has_warned = False
        self._idle: list[_Connection] = []

    async def ask(self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes) -> Answer | None:
        """Return the answer to a request; None if there is none within ten seconds. `target`: path and query, encoded.

        A connection that the server has closed since is replaced once: queries only read.
        """
        fields = [("host", self._place.netloc), ("content-length", str(len(body))), *headers]
        lines = [f"{method} {self._place.path.rstrip('/')}{target} HTTP/1.1", *(f"{k}: {v}" for k, v in fields)]
        request = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                while self._idle:
                    answer = await self._exchange(self._idle.pop(), request)
                    if answer is not None:
                        return answer
                return await self._exchange(await self._connect(), request)
        except ssl.SSLError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "%s cannot be asked by TLS (%s): the server there needs a certificate for this name, of an "
                    "authority that this machine knows (SSL_CERT_FILE)", self._place.geturl(), error.reason or error
                )  # fmt: skip
            return None
        except (OSError, TimeoutError):
            return None

    async def _connect(self) -> _Connection:
        place = self._place
        loop, is_tls = asyncio.get_running_loop(), place.scheme == "https"
        port = place.port or (443 if is_tls else 80)
        context = self._context if is_tls else None
        return (await loop.create_connection(_Connection, place.hostname or "", port, ssl=context))[1]

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def _exchange(self, connection: _Connection, request: bytes) -> Answer | None:
        """Return the answer on a connection; None if it was closed instead."""
        try:
            answer = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Close those that no request uses."""
        for each in self._idle:
            each.close()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """A connection with at most one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: Any = None
        self._answer: asyncio.Future[Answer | None] | None = None

    async def exchange(self, request: bytes) -> Answer | None:
        """Send a request, and return the answer; None if the server closes the connection instead."""
        if not self.is_open:
            return None
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Close it."""
        self.is_open = False
        self._transport.close()

    # ------------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_open, self._transport = True, transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
            self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._end(None)

    def _end(self, answer: Answer | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    # ------------------------------------------------------------------ called by the parser

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        self._end((self._parser.get_status_code(), bytes(self._body)))
