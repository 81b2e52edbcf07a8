"""Changes: the entries of a store that commits change, as a server sends them."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from penstock import StoreUnavailableError

from .entries import Entry, QueryError

_AGAIN_SECONDS = 0.5
"""How long to wait before a stream that has broken off is opened again."""
_CONTINUES = ("slow", "closed")
"""The codes of a last event after which another stream continues where this one was."""

Opened = tuple[http.client.HTTPConnection, http.client.HTTPResponse]
Connect = Callable[[str | None, Callable[[http.client.HTTPConnection], None]], Opened]
"""Opens a stream behind a position, and tells which connection it asks on, before it waits for the answer."""


class Changes(Iterator[Entry]):
    """Iterates over changed entries, as tasks commit, without end; the value of a deleted one is None.

    It continues when the server is started again or another one answers: then some changes may come twice. `position`
    is text: with it as `after` another reader continues behind the last change that was taken. Close it, or use it in
    a `with` block; `close` in another thread ends the iteration. `timeout`: seconds without a server before it raises.

    Iterating raises QueryError: with the code "gap" if the changes since then are not in the changelog any more, so
    that the store has to be read again.
    """

    def __init__(self, connect: Connect, timeout: float, after: str | None) -> None:
        self._connect = connect
        self._timeout = timeout
        self.position = after
        self._socket: socket.socket | None = None
        self._open: Opened | None = None
        self._lock = threading.Lock()
        self._has_closed = False

    def begin(self) -> None:
        """Open a stream, and read its first event; again and again, until `timeout`. Raises as `Store.get`."""
        until = time.monotonic() + self._timeout
        while not self._has_closed:
            try:
                opened = self._connect(self.position, self._note)
                with self._lock:
                    self._open = opened
                if self._has_closed:
                    self.close()
                self._event()
                return
            except (OSError, http.client.HTTPException, StoreUnavailableError, QueryError) as error:
                # A proxy answers 502 or 504 while the server is started again.
                is_refused = isinstance(error, QueryError) and 0 < error.status < 500
                if is_refused or time.monotonic() > until:
                    raise
                time.sleep(_AGAIN_SECONDS)

    def _note(self, connection: http.client.HTTPConnection) -> None:
        """Keep the socket on which a stream is asked for, so that `close` ends the wait for the answer.

        The connection forgets it where the answer says that it ends with the connection.
        """
        with self._lock:
            self._socket = connection.sock
        if self._has_closed:
            raise ConnectionError("the stream of changes was closed")

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        """Return the next change. Raises QueryError, and StopIteration after `close`."""
        while not self._has_closed:
            try:
                kind, data = self._event()
            except (OSError, ValueError, http.client.HTTPException):
                self._again()
                continue
            except AttributeError:  # of the answer that another thread closes
                if self._has_closed:
                    break
                raise
            if kind == "change":
                return Entry.of(data)
            if kind == "end":
                error = data["error"]
                if error["code"] not in _CONTINUES:
                    self.close()
                    raise QueryError(error["message"], 0, error["code"])
                self._again()
        raise StopIteration

    def _again(self) -> None:
        self._end()
        if not self._has_closed:
            self.begin()

    def _event(self) -> tuple[str, Any]:
        """Return the next event, and its data; None for one that only has an id. Raises OSError at the end."""
        with self._lock:
            opened = self._open
        if opened is None:
            raise ConnectionError("the stream of changes was closed")
        response = opened[1]
        kind, data, position = "", b"", None
        while True:
            line = response.readline()
            if not line.endswith(b"\n"):
                raise ConnectionError("the stream of changes has ended")
            name, _, rest = line.rstrip(b"\n").partition(b": ")
            if name == b"event":
                kind = rest.decode()
            elif name == b"data":
                data += rest
            elif name == b"id":
                position = rest.decode()
            elif not line.strip():
                if position is not None:
                    self.position = position
                return kind, json.loads(data) if data else None

    def _end(self) -> None:
        with self._lock:
            opened, self._open = self._open, None
            open_socket, self._socket = self._socket, None
        if open_socket is not None:
            with suppress(OSError):  # wakes a thread that reads
                open_socket.shutdown(socket.SHUT_RDWR)
        if opened is not None:
            with suppress(AttributeError):  # the thread that reads closes the answer, too
                opened[1].close()
            opened[0].close()

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration; idempotent, and in any thread."""
        self._has_closed = True
        self._end()
