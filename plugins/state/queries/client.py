"""Client: asks a server of queries, such as `penstock serve`. It needs the standard library alone."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from penstock import (
    ConfigError,
    Duration,
    PenstockError,
    SerdeError,
    StoreUnavailableError,
    TopicPartition,
    Windowed,
    duration_ms,
)
from penstock.support.text_form import from_json, to_json

__all__ = ["AsyncClient", "AsyncStore", "Changes", "Client", "Entry", "QueryError", "Store"]


class QueryError(PenstockError):
    """A server refused a query, or cannot be reached. `status`: of HTTP, 0 without an answer; `code`: the server's."""

    def __init__(self, message: str, status: int = 0, code: str = "unreachable") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class Entry:
    """An entry of a store, with key and value as `Store` says. Times are in ms.

    `timestamp` and `headers`: of its value, if the store was asked for them; of a version, when it began. `valid_to`:
    when a version ended, -1 for the latest, None in a change. `start` and `end`: of a window or session.
    """

    key: Any
    value: Any
    timestamp: int | None = None
    valid_to: int | None = None
    headers: Any = ()
    start: int | None = None
    end: int | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Entry:
        """Return the entry that an answer has. Raises QueryError for a form that this version does not read."""
        try:
            return cls(**{**data, "key": from_json(data["key"]), "value": from_json(data["value"])})
        except (SerdeError, TypeError, LookupError) as error:
            raise QueryError(f"the server's answer is no entry: {error}", 200, "no_entry") from error


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


_OF_CHANGES = ("timestamps", "wait", "task", "all_tasks")
_PAGE = 1_000
"""Entries that are asked for at once."""
_BODY_BYTES = 1_000_000
"""Keys of one request have so many bytes together, or are one: a server takes a body of 1 MiB."""
_LONG_TARGET = 8_000
"""Characters of an address beyond which servers and proxies refuse a request, some sooner than others."""


def _bounds(
    timestamps: bool,
    stale_ok: bool,
    at_least: Mapping[TopicPartition, int] | None,
    wait: Duration,
    task: str | None,
    all_tasks: bool,
) -> tuple[tuple[str, str], ...]:
    flags = {"timestamps": timestamps, "stale_ok": stale_ok, "all_tasks": all_tasks}
    given = [(name, "true") for name, flag in flags.items() if flag]
    given += [("at_least", f"{each.topic}:{each.partition}:{offset}") for each, offset in (at_least or {}).items()]
    given += [("task", task)] if task is not None else []
    return (*given, ("wait", str(duration_ms(wait, "wait"))))


class Client:
    """Asks the server at `url`; any thread may call all methods. Close it, or use it in a `with` block.

    `token`: sent with each request. `timeout`: how long to wait for an answer. `context`: for https, with the
    certificates to trust (None: those of the system). Raises ConfigError for another URL, such as one with a user.
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout: Duration = "30s", context: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or {*"@?#"} & {*url}:  # errors show the URL
            raise ConfigError("url: expected http://HOST:PORT or https://HOST:PORT, with no user and no query")
        self._url = url
        self._path = parts.path.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.timeout = seconds = duration_ms(timeout, "timeout") / 1000
        place = parts.hostname, parts.port
        self._connect: Callable[[], http.client.HTTPConnection] = (
            (lambda: http.client.HTTPSConnection(*place, timeout=seconds, context=context))
            if parts.scheme == "https"
            else (lambda: http.client.HTTPConnection(*place, timeout=seconds))
        )
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def stores(self) -> dict[str, str]:
        """Return the kinds of the stores that can be asked, by name. Raises as `Store.get`."""
        return {each["name"]: each["kind"] for each in self.request("/v1/stores")["stores"]}

    def store(
        self,
        name: str,
        *,
        timestamps: bool = False,
        stale_ok: bool = False,
        at_least: Mapping[TopicPartition, int] | None = None,
        wait: Duration = "1s",
        task: str | None = None,
        all_tasks: bool = False,
    ) -> Store:
        """Return a store, to be asked. `timestamps`: with those of values, and headers; the rest as `Queries.store`."""
        return Store(self, name, _bounds(timestamps, stale_ok, at_least, wait, task, all_tasks))

    def request(self, path: str, given: Iterable[tuple[str, str]] = (), body: Any = None) -> Any:
        """Return the JSON of an answer. Raises as `Store.get`."""
        query = urlencode(list(given))
        target = f"{self._path}{path}" + (f"?{query}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        status, answer = self.exchange("GET" if data is None else "POST", target, data, self._headers)
        found = self._json(status, answer, len(target))
        if status == 200:
            return found
        raise self._error(status, found)

    def stream(
        self,
        path: str,
        given: Iterable[tuple[str, str]],
        after: str | None,
        connected: Callable[[http.client.HTTPConnection], None] = lambda connection: None,
    ) -> Opened:
        """Return an answer of events that is read as it comes, on a connection of its own. Raises as `Store.get`.

        `connected` is called with the connection before the request is sent.
        """
        connection = self._connect()
        last = {} if after is None else {"Last-Event-ID": after}
        try:
            connection.connect()
            connected(connection)
            target = f"{self._path}{path}?{urlencode(list(given))}"
            connection.request("GET", target, headers={**self._headers, **last})
            response = connection.getresponse()
            if response.status == 200:
                return connection, response
            raise self._error(response.status, self._json(response.status, response.read(), len(target)))
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | http.client.HTTPException):
                raise QueryError(f"{self._url} does not answer: {error or type(error).__name__}") from error
            raise

    def _json(self, status: int, answer: bytes, length: int) -> Any:
        """Return the JSON of an answer to a request whose address had `length` characters. Raises as `Store.get`."""
        try:
            return json.loads(answer)
        except ValueError:
            if status == 503:  # of a server with too many connections, or of a proxy
                raise StoreUnavailableError(f"{self._url}: it answered {status}") from None
            said = f"{self._url}: it answered {status} without JSON"
            if 400 <= status < 500 and length > _LONG_TARGET:
                said += (
                    f": the key makes an address of {length:,} characters, which it or a proxy may refuse; `get_many` "
                    "sends keys of key-value stores in the body"
                )
            raise QueryError(said, status, "no_json") from None

    def _error(self, status: int, found: Any) -> StoreUnavailableError | QueryError:
        error = found.get("error", {}) if isinstance(found, dict) else {}
        message = f"{self._url}: {error.get('message', status)}"
        if status == 503:
            return StoreUnavailableError(message)
        return QueryError(message, status, error.get("code", ""))

    def exchange(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return status and body of an answer. Raises QueryError if there is none.

        A connection that the server has closed since is replaced once: queries only read.
        """
        while True:
            with self._lock:
                is_new = not self._idle
                connection = self._connect() if is_new else self._idle.pop()
            try:
                connection.request(method, target, data, dict(headers))
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if is_new or isinstance(error, TimeoutError):
                    raise QueryError(f"{self._url} does not answer: {error or type(error).__name__}") from error
                continue
            except BaseException:
                connection.close()
                raise
            if response.will_close:
                connection.close()
            else:
                with self._lock:
                    self._idle.append(connection)
            return response.status, body

    def close(self) -> None:
        """Close the connections; idempotent."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True)
class Store:
    """A store of a server. Methods raise QueryError, and StoreUnavailableError if no version may answer now.

    Keys are given as the program has them, and so are those and the values of entries, except for the serdes of classes
    such as `of`: entries have the JSON that they write. A key for `of` may be a dataclass, NamedTuple or enum, or that
    JSON. Methods raise SerdeError for a key of another class.
    """

    client: Client
    name: str
    bounds: tuple[tuple[str, str], ...]

    @property
    def _path(self) -> str:
        return f"/v1/stores/{quote(self.name, safe='')}"

    def get(self, key: Any, *, window: int | None = None, as_of: int | None = None) -> Entry | None:
        """Return the entry of a key, or None.

        `window`: of a window store, the start of the window (ms). `as_of`: of a versioned store, the version that was
        valid then.
        """
        given = [("key", _key(key)), ("json_keys", "true"), *_numbers(window=window, as_of=as_of), *self.bounds]
        try:
            return Entry.of(self.client.request(f"{self._path}/get", given))
        except QueryError as error:
            if error.code == "not_found":
                return None
            raise

    def get_many(self, keys: Iterable[Any]) -> list[Entry | None]:
        """Return the entry of each key of a key-value store, None where there is none.

        Those of one task are of one version, unless they come in several answers: for more than 1,000 keys, or where
        keys or entries are large.
        """
        wanted = [_data(key) for key in keys]
        return [each for part in _requests(wanted) for each in self._get_many(part)]

    def _get_many(self, keys: list[Any]) -> list[Entry | None]:
        try:
            found = self.client.request(f"{self._path}/get", self.bounds, {"keys": keys})["entries"]
        except QueryError as error:
            if error.code != "too_large" or len(keys) == 1:
                raise
            half = len(keys) // 2
            return [*self._get_many(keys[:half]), *self._get_many(keys[half:])]
        return [None if each is None else Entry.of(each) for each in found]

    def entries(
        self,
        *,
        key: Any = None,
        start: Any = None,
        end: Any = None,
        prefix: Any = None,
        time_from: int | None = None,
        time_to: int | None = None,
    ) -> Iterator[Entry]:
        """Iterate over entries: of one key, of a range with both ends, or of a prefix; without these over all.

        Times (ms) as in `Queries.store`: windows that start, sessions that overlap, versions valid from `time_from` to
        `time_to`. They are read in pages, each of the version of its time.
        """
        for page in self.pages(key=key, start=start, end=end, prefix=prefix, time_from=time_from, time_to=time_to):
            yield from page

    def pages(
        self,
        *,
        key: Any = None,
        start: Any = None,
        end: Any = None,
        prefix: Any = None,
        time_from: int | None = None,
        time_to: int | None = None,
    ) -> Iterator[list[Entry]]:
        """Iterate over the pages in which `entries` reads: up to 1,000 entries, or 8 MB and an entry."""
        keys = {"key": key, "start": start, "end": end, "prefix": prefix}
        given = [(name, _key(each)) for name, each in keys.items() if each is not None]
        given += [("json_keys", "true"), ("limit", str(_PAGE)), *_numbers(**{"from": time_from, "to": time_to})]
        page: str | None = None
        while True:
            more = [] if page is None else [("page", page)]
            found = self.client.request(f"{self._path}/entries", [*given, *more, *self.bounds])
            yield [Entry.of(each) for each in found["entries"]]
            page = found["page"]
            if page is None:
                return

    def changes(
        self, key: Any = None, *, start: Any = None, end: Any = None, prefix: Any = None, after: str | None = None
    ) -> Changes:
        """Iterate over entries as commits change them, from now on; None for a deleted value.

        Of one key, of a range with both ends, of a prefix, or of all. `after`: the `position` of earlier changes, to
        continue behind them.
        """
        made = self.changes_to_begin(key, start=start, end=end, prefix=prefix, after=after)
        made.begin()
        return made

    def changes_to_begin(
        self, key: Any = None, *, start: Any = None, end: Any = None, prefix: Any = None, after: str | None = None
    ) -> Changes:
        """Return `changes` before their `begin`, which another thread may end by `close`."""
        keys = {"key": key, "start": start, "end": end, "prefix": prefix}
        given = [(name, _key(each)) for name, each in keys.items() if each is not None]
        given += [("json_keys", "true"), *(each for each in self.bounds if each[0] in _OF_CHANGES)]
        return Changes(partial(self.client.stream, f"{self._path}/changes", given), self.client.timeout, after)

    def lags(self) -> dict[str, int]:
        """Return how many versions the copy of each task is behind."""
        return {each["task"]: each["behind"] for each in self.client.request(self._path)["tasks"]}


class AsyncClient:
    """A Client for asynchronous code: each request is made in a thread. Close it, or use `async with`."""

    def __init__(
        self, url: str, *, token: str | None = None, timeout: Duration = "30s", context: ssl.SSLContext | None = None
    ) -> None:
        self._client = Client(url, token=token, timeout=timeout, context=context)

    async def stores(self) -> dict[str, str]:
        """Return the kinds of the stores that can be asked, by name."""
        return await asyncio.to_thread(self._client.stores)

    def store(self, name: str, **options: Any) -> AsyncStore:
        """Return a store, to be asked; `options` are those of `Client.store`."""
        return AsyncStore(self._client.store(name, **options))

    async def close(self) -> None:
        """Close the connections; idempotent."""
        self._client.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


@dataclass(frozen=True)
class AsyncStore:
    """A Store for asynchronous code; its methods are those of Store."""

    store: Store

    async def get(self, key: Any, *, window: int | None = None, as_of: int | None = None) -> Entry | None:
        """Return the entry of a key, or None."""
        return await asyncio.to_thread(self.store.get, key, window=window, as_of=as_of)

    async def get_many(self, keys: Iterable[Any]) -> list[Entry | None]:
        """Return the entry of each key, None where there is none."""
        return await asyncio.to_thread(self.store.get_many, list(keys))

    async def entries(self, **given: Any) -> AsyncIterator[Entry]:
        """Iterate as `Store.entries` does; a page is read at a time."""
        found = self.store.pages(**given)
        while (page := await asyncio.to_thread(next, found, None)) is not None:
            for each in page:
                yield each

    async def changes(self, key: Any = None, **given: Any) -> AsyncGenerator[Entry, None]:
        """Iterate as `Store.changes` does; close it (`contextlib.aclosing`) where the loop is left early."""
        loop = asyncio.get_running_loop()
        # Waiting takes a thread for as long as the stream lasts: a few would use up those that asyncio has for all.
        thread, found = ThreadPoolExecutor(1, "penstock-changes"), self.store.changes_to_begin(key, **given)
        try:
            await loop.run_in_executor(thread, found.begin)
            while (entry := await loop.run_in_executor(thread, next, found, None)) is not None:
                yield entry
        finally:
            found.close()
            thread.shutdown(wait=False)

    async def lags(self) -> dict[str, int]:
        """Return how many versions the copy of each task is behind."""
        return await asyncio.to_thread(self.store.lags)


def _data(key: Any) -> Any:
    """Return the text form of a key; one with fields is written as the serde `of` writes it."""
    return to_json(_plain(key))


def _plain(key: Any) -> Any:
    """Return a key with dicts, lists and values for what has fields or is an enum, also inside."""
    if isinstance(key, Enum):
        return _plain(key.value)
    if isinstance(key, Windowed):
        return key._replace(key=_plain(key.key))
    if is_dataclass(key) and not isinstance(key, type):
        return {each.name: _plain(getattr(key, each.name)) for each in fields(key)}
    if isinstance(key, tuple) and hasattr(key, "_fields"):
        return list(map(_plain, key))
    if type(key) in (list, tuple):
        return type(key)(map(_plain, key))
    return {_plain(name): _plain(each) for name, each in key.items()} if type(key) is dict else key


def _key(key: Any) -> str:
    return json.dumps(_data(key))


def _requests(keys: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the keys of each request: up to `_PAGE` of them, or `_BODY_BYTES`."""
    part: list[Any] = []
    left = _BODY_BYTES
    for key in keys:
        size = len(json.dumps(key)) + 2  # ", " behind it
        if part and (len(part) == _PAGE or size > left):
            yield part
            part, left = [], _BODY_BYTES
        part.append(key)
        left -= size
    if part:
        yield part


def _numbers(**given: int | None) -> list[tuple[str, str]]:
    return [(name, str(number)) for name, number in given.items() if number is not None]
