"""Connections: asks other servers over HTTP from the event loop, on connections that stay open."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from penstock.support.packages import needed

with needed("the server of queries", "serve"):
    import httptools


Answer = tuple[int, bytes]
"""The status of an answer, and its body."""
_TIMEOUT_SECONDS = 10.0


class Connections:
    """The open connections to one server at `url`. One event loop calls all methods."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)
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
