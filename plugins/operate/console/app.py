"""Console: the ASGI application with the pages; the server of queries mounts it, and so may any other application."""

from __future__ import annotations

import functools
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from penstock import PenstockError
from penstock.plugins.describe.svg import DARK_RULES
from penstock.plugins.operate.settings.settings_in_force import settings_in_force
from penstock.plugins.state.queries.http.answers import Answers
from penstock.plugins.state.queries.http.guard import Guard, Refused, refusal
from penstock.plugins.state.queries.http.server import ServerOptions
from penstock.plugins.state.queries.http.service import read_body
from penstock.plugins.state.queries.queries import Queries
from penstock.support.packages import needed
from penstock.support.printable import printable

from . import views
from .letters import Done, Letters
from .store_views import StoreViews
from .watch import Watching

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send


COOKIE = "penstock-console"
SESSION_SECONDS = 12 * 3_600


class Right(IntEnum):
    """What a request may do; each right has those before it."""

    NONE = 0
    READ = 1
    ACT = 2


@dataclass(frozen=True)
class Rights:
    """The tokens. `token`: to read (None: everyone may); `actions_token`: to act as well (None: nobody may)."""

    token: str | None
    actions_token: str | None

    def of_request(self, request: Request) -> Right:
        """Return the right of a request, by its bearer token or its cookie."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        bearer = self.of_token(given.strip()) if scheme.lower() == "bearer" else Right.NONE
        return max(bearer, self._of_cookie(request.cookies.get(cookie_name(request), "")), self._of_everyone)

    def of_token(self, given: str) -> Right:
        """Return the right of a token; NONE for one that is not known."""
        known = ((self.actions_token, Right.ACT), (self.token, Right.READ))
        return next((right for token, right in known if token is not None and _is_same(given, token)), Right.NONE)

    @property
    def _of_everyone(self) -> Right:
        return Right.READ if self.token is None else Right.NONE

    def cookie(self, right: Right, seconds: int = SESSION_SECONDS) -> str:
        """Return the value of a cookie that has a right for so long. It does not show the token."""
        expires = str(int(time.time()) + seconds)
        return f"{right.name}.{expires}.{self._signature(right, expires)}"

    def _of_cookie(self, cookie: str) -> Right:
        name, _, rest = cookie.partition(".")
        expires, _, signature = rest.partition(".")
        right = {"READ": Right.READ, "ACT": Right.ACT}.get(name, Right.NONE)
        if right is Right.NONE or self._key(right) is None or not _is_same(signature, self._signature(right, expires)):
            return Right.NONE
        return right if int(expires) > time.time() else Right.NONE

    def _key(self, right: Right) -> str | None:
        return self.actions_token if right is Right.ACT else self.token

    def _signature(self, right: Right, expires: str) -> str:
        key = self._key(right)
        assert key is not None
        return hmac.digest(key.encode(), f"console {right.name} {expires}".encode("utf-8", "replace"), "sha256").hex()


def cookie_name(request: Request) -> str:
    """Return the name of the cookie for the port that the browser asked: it sends cookies to each port of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isascii() and port.isdigit() else COOKIE


def _is_same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


with needed("the console", "serve"):
    import anyio.to_thread
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route


_log = logging.getLogger("penstock.console")

_THREADS = 8
"""How many pages are made at a time; queries have threads of their own."""
_FOLDER = Path(__file__).parent
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PAGES = {
    "./": ("overview", "Overview"),
    "topology": ("topology", "Topology"),
    "tasks": ("tasks", "Tasks"),
    "stores": ("stores", "Stores"),
    "dead-letters": ("dead_letters", "Dead letters"),
    "settings": ("settings", "Settings"),
    "events": ("events", "Events"),
}
"""The template and the title of each page, by its address."""
_BELOW = {"store": ("store", "Store", "stores"), "copies": ("copies", "Copies", "stores")}
"""Pages below one of these: template, title, and the address of that one."""


class Console:
    """The pages of an application, as an ASGI application; `close` ends what it has started.

    `options`: which stores are shown, and which tokens and hosts are let in, as for a server of queries.
    """

    def __init__(self, queries: Queries, options: ServerOptions) -> None:
        application = queries.application
        self._application = application
        names = options.names(list(queries.stores()))
        hides = options.stores is not None or bool(options.excluded or options.masked)
        self._guard = Guard(options.address, options.token, options.hosts)
        self._rights = Rights(options.token, options.actions_token)
        self._watching = Watching(queries.named)
        self._stores = StoreViews(Answers(queries, names, list(options.masked)))
        self._letters = Letters(queries.named, hides=hides)
        self._limiter: anyio.CapacityLimiter | None = None
        self._templates = Environment(
            loader=FileSystemLoader(_FOLDER / "templates"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, finalize=_seen,
        )  # fmt: skip
        self._pages: Mapping[str, Callable[[views.Given], views.Context]] = {
            "./": lambda given: views.overview(self._watching.view(), hides=hides),
            "topology": lambda given: views.topology(application.program, self._watching.view(), self._stores.names()),
            "tasks": lambda given: views.tasks(self._watching.view(), given),
            "stores": lambda given: self._stores.stores(),
            "store": self._stores.store,
            "copies": self._stores.copies,
            "dead-letters": self._letters.page,
            "settings": lambda given: {"settings": settings_in_force(application)},
            "events": lambda given: views.events(self._watching.view()),
        }
        self._app = self._made()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI says."""
        await self._app(scope, receive, send)

    def close(self) -> None:
        """End the thread that looks at the application; idempotent."""
        self._watching.close()

    def _made(self) -> Starlette:
        routes = [
            *(Route(f"/{page.removeprefix('./')}", self._page(page)) for page in (*_PAGES, *_BELOW)),
            *(Route(f"/{file.name}", _static(file)) for file in sorted((_FOLDER / "static").iterdir())),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/replay", self._replay, methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {Refused: self._refused, HTTPException: self._refused, Exception: self._failed}
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        return app

    # ------------------------------------------------------------------ requests

    def _page(self, page: str) -> Callable[[Request], Any]:
        make = self._pages[page]
        template, title, *above = {**_PAGES, **_BELOW}[page]

        async def answer(request: Request) -> Response:
            self._guard.check_origin(request)
            right = self._rights.of_request(request)
            if right < Right.READ:
                return self._login_page(request, 401, None)
            given = dict(request.query_params)

            def made() -> Response:
                context = {"page": above[0] if above else page, "title": title, **make(given)}
                return self._rendered(request, template, context, right)

            found: Response = await self._in_thread(made)
            return found

        return answer

    async def _replay(self, request: Request) -> Response:
        given = await self._form(request)
        if self._rights.of_request(request) < Right.ACT:
            raise Refused(403, "not_allowed", self._why_not())
        try:
            done: Done = await self._in_thread(functools.partial(self._letters.replay, given))
        except PenstockError as error:
            raise refusal(error) from error
        return _redirect(f"dead-letters?{urlencode({'topic': given['topic'], **done.query()})}")

    async def _login(self, request: Request) -> Response:
        self._guard.check_origin(request)
        if request.method != "POST":
            return self._login_page(request, 200, None)
        right = self._rights.of_token((await self._form(request)).get("token", "").strip())
        if right is Right.NONE:
            return self._login_page(request, 401, "This is not a token of the server.")
        return _with_cookie(_redirect("./"), request, self._rights.cookie(right), SESSION_SECONDS)

    async def _logout(self, request: Request) -> Response:
        await self._form(request)
        return _with_cookie(_redirect("./"), request, "", 0)

    async def _form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form that a page of ours has sent. Raises Refused for any other request."""
        self._guard.check_origin(request)
        if "origin" not in request.headers:
            raise Refused(403, "wrong_origin", "The request does not come from a page of this server.")
        try:
            fields = parse_qsl((await read_body(request)).decode("ascii"), keep_blank_values=True, max_num_fields=20)
        except ValueError:
            raise Refused(400, "bad_request", "The form cannot be read.") from None
        return dict(fields)

    # ------------------------------------------------------------------ answers

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    def _rendered(self, request: Request, template: str, context: views.Context, right: Right) -> Response:
        """Return a page; with the right NONE it shows nothing of the application."""
        may_read = right is not Right.NONE
        view = self._watching.view() if may_read else None
        common = {
            "application_id": "penstock" if view is None else view.application_id,
            "state": "" if view is None else view.state,
            "phase": "" if view is None else view.phase,
            "error": None if view is None or view.error is None else "the log of the server says why.",
            "pages": [(address, title) for address, (_, title) in _PAGES.items()] if may_read else [],
            "may_act": right is Right.ACT,
            "why_not": self._why_not(),
            "may_log_in": may_read and right is not Right.ACT and self._rights.actions_token is not None,
            "has_session": may_read and cookie_name(request) in request.cookies,
        }
        status = context.pop("status", 200)
        text = self._templates.get_template(f"{template}.html").render({**common, **context})
        # Fields of forms may hold halves of surrogate pairs.
        return Response(text.encode("utf-8", "backslashreplace"), status, _HEADERS, "text/html; charset=utf-8")

    def _why_not(self) -> str:
        if self._rights.actions_token is None:
            return "Nothing can be replayed here: the server has no queries_actions."
        return "To replay, use the token that may act."

    def _login_page(self, request: Request, status: int, refused: str | None) -> Response:
        context = {
            "page": "login", "title": "Token", "status": status, "refused": refused,
            "acts": self._rights.actions_token is not None, "hours": SESSION_SECONDS // 3_600,
        }  # fmt: skip
        return self._rendered(request, "login", context, Right.NONE)

    async def _refused(self, request: Request, error: Exception) -> Response:
        if isinstance(error, Refused):
            status, text = error.status, error.message
        else:
            assert isinstance(error, HTTPException)
            status, text = error.status_code, {404: "There is no such page."}.get(error.status_code, error.detail)
        return self._message(request, status, text)

    async def _failed(self, request: Request, error: Exception) -> Response:
        _log.error("a page failed", exc_info=error)
        return self._message(request, 500, "The server failed; its log says why.")

    def _message(self, request: Request, status: int, text: str) -> Response:
        context = {"page": "", "title": "Not possible", "status": status, "refused": text}
        return self._rendered(request, "message", context, Right.NONE)


def _seen(value: Any) -> Any:
    """Return a value of a template as it is shown: no text, whoever wrote it, turns the page or hides a part."""
    return printable(value) if type(value) is str else value


def _static(file: Path) -> Callable[[Request], Any]:
    data = file.read_bytes() + (DARK_RULES.encode() if file.suffix == ".css" else b"")
    headers = {**_HEADERS, "Cache-Control": "no-cache"}

    async def answer(request: Request) -> Response:
        return Response(data, 200, headers, _TYPES[file.suffix])

    return answer


def _redirect(to: str) -> Response:
    return Response(b"", 303, {**_HEADERS, "Location": to})


def _with_cookie(answer: Response, request: Request, value: str, seconds: int) -> Response:
    """Return an answer that sets the cookie for so long; for 0 seconds it ends the one that is there.

    It names no path: a browser then takes that of the pages, also behind a proxy that adds to the front of it.
    """
    answer.set_cookie(
        cookie_name(request), value, max_age=seconds, path=None, httponly=True, samesite="strict",
        secure=_is_secure(request),
    )  # fmt: skip
    return answer


def _is_secure(request: Request) -> bool:
    """Return whether the browser speaks TLS, to this server or to a proxy in front of it: its origin says so."""
    return request.url.scheme == "https" or request.headers["origin"].lower().startswith("https:")
