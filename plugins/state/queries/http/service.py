"""service: the ASGI application that answers queries; may also be mounted into another one."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from penstock import PenstockError, StoreUnavailableError
from penstock.plugins.serdes.json_text import dump_json
from penstock.support.packages import needed

from ..copies import NotHere, WouldWait, at_once
from ..subscription import ChangesEndedError, Subscription, token_of
from .answers import Answers, Data, Followed
from .forwarding import ASKED_WITHIN, FORWARDED, Forwarding, Sent
from .guard import Guard, Refused, refusal
from .parameters import GONE, OPERATIONS, Operation, Parameters, description, keys_of_body

with needed("the server of queries", "serve"):
    import anyio.to_thread
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import RedirectResponse, Response, StreamingResponse
    from starlette.routing import BaseRoute, Mount, Route
    from starlette.types import ASGIApp, Receive, Scope, Send

_log = logging.getLogger("penstock.queries")

_MOST_BODY_BYTES = 1 << 20
_MOST_READ_BYTES = 16 << 20
"""So much of a body that is too large is read, and dropped: a client that still sends would not read the answer."""
_BODY_SECONDS = 10.0
"""How long a client may take to send its body."""
_STREAM_SECONDS = 600.0
"""How long a client may take to read a stream."""
_THREADS = 64
"""How many queries are answered, or wait, at a time; others wait for their turn."""
_PAGE = 1_000
"""Entries of a stream that are in memory at a time."""
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JSON_HEADERS = [
    (name.lower().encode(), value.encode()) for name, value in {**_HEADERS, "Content-Type": "application/json"}.items()
]
_NDJSON = "application/x-ndjson"
_KEY_PATH = re.compile("/v1/stores/([^/]+)/get")
_OF_KEY = dict.fromkeys(next(each.parameters for each in OPERATIONS if each.name == "get"))


def service(
    answers: Answers,
    guard: Guard,
    application_id: str,
    pages: ASGIApp | None = None,
    is_ending: Callable[[], bool] = lambda: False,
    forwarding: Forwarding | None = None,
) -> ASGIApp:
    """Return the ASGI application that answers requests by `answers`, if `guard` lets them through.

    `pages`: an application of its own at `/console/`. Streams of changes end when `is_ending` returns True.
    `forwarding` has what cannot be answered here.
    """
    made = _Service(answers, guard, is_ending, forwarding)
    described = dump_json(description(application_id, has_token=guard.token is not None))
    routes: list[BaseRoute] = [
        Route(each.path, made.endpoint(each), methods=[each.method.upper()]) for each in OPERATIONS
    ]
    routes += [
        Route("/openapi.json", made.guarded(functools.partial(_answer_bytes, described))),
        Route("/health/live", made.live),
        Route("/health/ready", made.ready),
    ]
    if pages is not None:
        to_pages = functools.partial(RedirectResponse, "console/")
        routes += [Route(path, lambda request: to_pages()) for path in ("/", "/console")]
        routes.append(Mount("/console", pages))
    handlers = {Refused: _refused, HTTPException: _http, Exception: _failed}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if forwarding is not None:
            forwarding.close()

    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    return _KeysFirst(app, made)


Endpoint = Callable[[Request], Any]


class _KeysFirst:
    """ASGI application that answers requests for a key, where it is known how; `app` answers all others.

    Routing and error handling of starlette would take as long as the answer.
    """

    def __init__(self, app: ASGIApp, service: _Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            found = _KEY_PATH.fullmatch(scope["path"].removeprefix(scope.get("root_path", "")))
            if found is not None and (response := await self._service.key(found[1], Request(scope))) is not None:
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Service:
    def __init__(
        self, answers: Answers, guard: Guard, is_ending: Callable[[], bool], forwarding: Forwarding | None
    ) -> None:
        self._forwarding = forwarding
        self._answers = answers
        self._is_ending = is_ending
        self._guard = guard
        self._limiter: anyio.CapacityLimiter | None = None

    def _check(self, request: Request) -> None:
        """Raise Refused for a request that is not allowed, or was forwarded for another application.

        The address of a server that was killed is noted in the log until the next run, and another one may have it.
        """
        self._guard.check(request)
        asked = request.headers.get(FORWARDED)
        if self._forwarding is not None and not self._forwarding.is_for_us(asked):
            raise Refused(503, "other_application", f"this server is not one of the application {asked!r}")

    def guarded(self, answer: Endpoint) -> Endpoint:
        """Return an endpoint that checks requests before it answers them."""

        async def endpoint(request: Request) -> Response:
            self._check(request)
            found: Response = await answer(request)
            return found

        return endpoint

    def endpoint(self, operation: Operation) -> Endpoint:
        """Return the endpoint of an operation."""
        known = dict.fromkeys(operation.parameters)

        async def answer(request: Request) -> Response:
            given = self._given(request, known)
            name = request.path_params.get("store", "")
            if operation.name == "stores":
                return _json(self._answers.stores())
            if operation.name == "get_many":
                body = await read_body(request)
                keys = keys_of_body(body)
                return await self._data_or_forward(_sent(request, body), self._answers.get_many, name, given, keys)
            if operation.name == "entries" and _NDJSON in request.headers.get("accept", ""):
                return await self._stream(name, given)
            if operation.name == "changes":
                if request.method == "HEAD":  # a stream without a body would have no end
                    return Response(None, 200, _HEADERS, EVENT_STREAM)
                return await self._changes(name, given, request.headers.get("last-event-id"))
            if operation.name == "store":
                return await self._data(self._answers.store, name)
            if operation.name == "metadata":
                return await self._metadata(_sent(request), name, given)
            work = {"get": self._answers.get, "entries": self._answers.page}
            return await self._data_or_forward(_sent(request), work[operation.name], name, given)

        return self.guarded(answer)

    async def key(self, name: str, request: Request) -> Response | None:
        """Return the answer to a request for a key, from here or from another server; None if that has to be found out.

        It takes no thread: to hand a request to one and back takes longer than to read a key.
        """
        try:
            self._check(request)
            given = self._given(request, _OF_KEY)
            try:
                return _json(self._answers.get_at_once(name, given))
            except NotHere as missing:
                return await self._elsewhere(missing.task, name, given, _sent(request))
        except WouldWait:
            return None
        except Refused as refused:
            return _refusal(refused)
        except PenstockError as error:
            return _refusal(refusal(error))
        except Exception as error:
            return await _failed(request, error)

    def _given(self, request: Request, known: Mapping[str, object]) -> Parameters:
        given = Parameters.of(request.scope["query_string"], known)
        if self._forwarding is not None and FORWARDED in request.headers:
            given.since = self._forwarding.since(request.headers.get(ASKED_WITHIN))
        return given

    async def live(self, request: Request) -> Response:
        """Answer that the server is there."""
        return _json({"live": True})

    async def ready(self, request: Request) -> Response:
        """Answer whether every store can be asked."""
        try:
            is_ready = await self._in_thread(self._answers.is_ready)
        except PenstockError:
            is_ready = False
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    # ------------------------------------------------------------------ helpers

    async def _in_thread(self, work: Callable[..., Any], *given: Any) -> Any:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(functools.partial(work, *given), limiter=self._limiter)

    async def _data(self, work: Callable[..., Data], *given: Any) -> Response:
        try:
            return _Json(await self._in_thread(lambda: _dumped(work(*given))))
        except PenstockError as error:
            raise refusal(error) from error

    async def _others(self, sent: Sent, name: str, given: Parameters) -> list[str]:
        """Return the URLs of other servers that may answer a request, which none of them has forwarded."""
        if self._forwarding is None or FORWARDED in sent.headers:
            return []
        forwarding = self._forwarding

        def found() -> list[str]:
            return forwarding.others(self._answers.task_of(name, given.without_wait()))  # the answer waits

        try:
            urls: list[str] = await self._in_thread(found)
        except PenstockError:
            return []
        return urls

    async def _data_or_forward(
        self, sent: Sent, work: Callable[..., Data], name: str, given: Parameters, *more: Any
    ) -> Response:
        """Answer from here; else from where the tasks run; else wait until there is an answer here."""
        if self._answers.is_shown(name) and (others := await self._others(sent, name, given)):
            assert self._forwarding is not None
            try:
                return await self._data(work, name, given.without_wait(), *more)
            except Refused as refused:
                if refused.status not in (503, GONE):
                    raise
            with suppress(PenstockError):
                sent = sent.for_followers(*await self._in_thread(self._answers.followed, name, given.without_wait()))
            if (answer := await self._forwarded(others, sent)) is not None:
                return answer
        return await self._data(work, name, given, *more)

    async def _elsewhere(self, task: str, name: str, given: Parameters, sent: Sent) -> Response | None:
        """Return the answer of a server that has the task of a key; None if it is not known which one."""
        if self._forwarding is None or FORWARDED in sent.headers or not self._answers.is_shown(name):
            return None
        forwarding = self._forwarding
        try:
            others = at_once(lambda: forwarding.others(task))
            if not others:
                return None
            sent = sent.for_followers(*at_once(lambda: self._answers.followed(name, given, task)))
        except (WouldWait, PenstockError):
            return None
        return await self._forwarded(others, sent) or await self._data(self._answers.get, name, given)

    async def _forwarded(self, urls: Sequence[str], sent: Sent) -> Response | None:
        """Return the first answer of other servers; None if none has one."""
        assert self._forwarding is not None
        for url in urls:
            answer = await self._forwarding.ask(url, sent)
            if answer is not None and answer[0] not in (503, GONE):
                return _Json(answer[1], answer[0])
        return None

    async def _metadata(self, sent: Sent, name: str, given: Parameters) -> Response:
        """Answer which task has a key, and the state of its copies here and beside the tasks."""
        try:
            found = await self._in_thread(self._answers.metadata, name, given)
        except PenstockError as error:
            raise refusal(error) from error
        own = None if self._forwarding is None else self._forwarding.own
        copies = [{"server": own, **each} for each in found["copies"]]
        for url in reversed(await self._others(sent, name, given)):
            assert self._forwarding is not None
            answer = await self._forwarding.ask(url, sent)
            if answer is not None and answer[0] == 200:
                copies = [*json.loads(answer[1])["copies"], *copies]
        return _json({**found, "copies": copies})

    async def _changes(self, name: str, given: Parameters, after: str | None) -> Response:
        """Send changes as they are committed."""
        waking = Waking()
        try:
            followed = await self._in_thread(self._answers.subscription, name, given, after, waking.notify)
            try:
                await has_begun(followed.subscription, waking, given.bounds().wait)
            except BaseException:
                followed.close()
                raise
        except PenstockError as error:
            raise refusal(error) from error
        return event_stream(followed, waking, self._is_ending, _HEADERS)

    async def _stream(self, name: str, given: Parameters) -> Response:
        """Stream all entries, a page in memory at a time; an error before the first one is an answer of its own."""
        pages = (
            b"".join(dump_json(entry) + b"\n" for entry in page) for page in self._answers.pages(name, given, _PAGE)
        )
        try:
            first = await self._in_thread(next, pages, None)
        except PenstockError as error:
            raise refusal(error) from error

        async def lines() -> AsyncIterator[bytes]:
            page = first
            try:
                async with asyncio.timeout(_STREAM_SECONDS):
                    while page is not None:
                        yield page
                        page = await self._in_thread(next, pages, None)
                return
            except TimeoutError:
                refused = Refused(0, "timeout", "took too long")
            except Exception as error:
                refused = refusal(error)
            # The status was sent long ago: the last line says that the stream is not complete.
            yield dump_json(_error(refused)) + b"\n"

        return StreamingResponse(lines(), media_type=_NDJSON, headers=_HEADERS)


async def read_body(request: Request) -> bytes:
    """Return the body of a request. Raises Refused for one that is too large or comes too slowly."""
    body, size = b"", 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > _MOST_READ_BYTES:
                    break
                body = body + chunk if size <= _MOST_BODY_BYTES else b""
    except TimeoutError:
        raise Refused(408, "timeout", "the body did not come in time") from None
    except ClientDisconnect:
        raise Refused(400, "bad_request", "the body is not complete") from None
    if size > _MOST_BODY_BYTES:
        raise Refused(413, "too_large", f"the body has more than {_MOST_BODY_BYTES:,} bytes")
    return body


def _sent(request: Request, body: bytes = b"") -> Sent:
    """Return a request as another server is asked: by GET for HEAD, whose answer would seem to lack its body."""
    method = "GET" if request.method == "HEAD" else request.method
    path, query = request.scope["raw_path"].decode("ascii"), request.scope["query_string"].decode("ascii")
    return Sent(method, f"{path}?{query}" if query else path, request.headers, body)


class _Json(Response):
    """JSON. Its headers are made in a third of the time: they are most of what a Response takes."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        own = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        self.raw_headers = [*_JSON_HEADERS, (b"content-length", b"%d" % len(self.body)), *own]


def _json(data: Any, status: int = 200, **headers: str) -> Response:
    return _Json(dump_json(data), status, headers)


def _dumped(data: Data) -> bytes:
    """Return data as JSON, an entry at a time: other threads have their turn in between."""
    if "entries" not in data:
        return dump_json(data)
    rest = dump_json({name: value for name, value in data.items() if name != "entries"})
    entries = b",".join(map(dump_json, data["entries"]))
    return b'{"entries":[' + entries + b"]" + (b"," if len(data) > 1 else b"") + rest[1:]


async def _answer_bytes(data: bytes, request: Request) -> Response:
    return Response(data, 200, _HEADERS, "application/json")


def _error(refused: Refused) -> Data:
    return {"error": {"code": refused.code, "message": refused.message}}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _refusal(error)


def _refusal(error: Refused) -> Response:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}, 413: {"Connection": "close"}}
    return _json(_error(error), error.status, **headers.get(error.status, {}))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "unknown_path", 405: "wrong_method"}.get(error.status_code, "bad_request")
    headers = dict(error.headers or {})
    return _json(_error(Refused(error.status_code, code, error.detail)), error.status_code, **headers)


async def _failed(request: Request, error: Exception) -> Response:
    return _refusal(refusal(error))


with needed("the server of queries", "serve"):
    from starlette.responses import StreamingResponse

EVENT_STREAM = "text/event-stream"
_QUIET_SECONDS = 15.0
"""After which a stream without changes says where it is, so that proxies keep it open."""
_LOOK_SECONDS = 1.0
"""Seconds between two looks at whether the server ends."""


class Waking:
    """Wakes a coroutine of the event loop that made it, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake it; nothing if the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> bool:
        """Wait for `notify`, up to so many seconds; return whether it was called since `clear`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        return self._event.is_set()

    def clear(self) -> None:
        """Forget earlier calls of `notify`."""
        self._event.clear()


async def has_begun(subscription: Subscription, waking: Waking, seconds: float) -> None:
    """Wait until a subscription has a place to begin.

    Raises StoreUnavailableError after so many seconds, and what has ended the subscription before.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not subscription.has_begun_after(waking.clear):
        if not await waking.wait(max(0.0, until - loop.time())):
            raise StoreUnavailableError("the log has not said in time where the changes begin")


def event_stream(
    followed: Followed, waking: Waking, is_ending: Callable[[], bool], headers: dict[str, str]
) -> StreamingResponse:
    """Return the answer that sends changes until the client leaves; else the last event says why it ends.

    The first event, `begin`, has the id from which on changes come; then each commit's last change has one.
    """
    return StreamingResponse(_events(followed, waking, is_ending), media_type=EVENT_STREAM, headers=headers)


async def _events(followed: Followed, waking: Waking, is_ending: Callable[[], bool]) -> AsyncIterator[bytes]:
    loop, subscription = asyncio.get_running_loop(), followed.subscription
    try:
        yield b"event: begin\n" + _id(subscription) + b"data: {}\n\n"
        said_at = loop.time()
        while not is_ending():
            waking.clear()
            entries = subscription.take()
            if entries:
                # In a thread: a serde may be slow.
                yield await asyncio.to_thread(_lines, entries, followed.shown, _id(subscription))
                said_at = loop.time()
            elif loop.time() - said_at > _QUIET_SECONDS:
                yield _id(subscription) + b"\n"
                said_at = loop.time()
            else:
                await waking.wait(_LOOK_SECONDS)
        yield _end("closed", "the server ends")
    except ChangesEndedError as error:
        yield _end(error.code, str(error))
    except Exception as error:
        refused = refusal(error)
        yield _end(refused.code, refused.message)
    finally:
        followed.close()


def _lines(entries: Sequence[Any], shown: Callable[[Any], Data], last: bytes) -> bytes:
    events = [b"event: change\ndata: " + dump_json(shown(each)) + b"\n" for each in entries]
    return b"\n".join(events) + last + b"\n"


def _id(subscription: Subscription) -> bytes:
    return b"id: " + token_of(subscription.position()).encode() + b"\n"


def _end(code: str, message: str) -> bytes:
    return b"event: end\ndata: " + dump_json({"error": {"code": code, "message": message}}) + b"\n\n"
