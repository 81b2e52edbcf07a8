"""writing: sends the parts of an answer together."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.support.packages import needed

with needed("the server of queries", "serve"):
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


_MOST_BYTES = 65_536
"""So much is sent at once, without waiting for more."""
HEAD_SECONDS = 30.0
"""After which a connection is closed whose client has sent no request, or half of one's head."""


class OneWriteProtocol(HttpToolsProtocol):
    """uvicorn's protocol; head and body of an answer are one call of the system, which takes as long as the answer.

    It waits for the head of a request for `HEAD_SECONDS`, and uvicorn for the next request of a connection.
    """

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Gathering(transport, self.loop))  # type: ignore[arg-type]
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._await_head()

    def on_headers_complete(self) -> None:
        """Answer the request whose head has come."""
        self._end_of_head()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_of_head()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _end_of_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


class Gathering:
    """A transport that sends what is written within one turn of the event loop together."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting = b""
        for name in ("get_extra_info", "is_closing", "pause_reading", "resume_reading"):
            setattr(self, name, getattr(transport, name))

    def write(self, data: bytes) -> None:
        """Send data, after this turn of the event loop or before."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting += data
        if len(self._waiting) > _MOST_BYTES:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, b""
        if waiting and not self._transport.is_closing():
            self._transport.write(waiting)

    def close(self) -> None:
        """Close the connection, when all is sent."""
        self._flush()
        self._transport.close()
