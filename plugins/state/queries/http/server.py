"""Server: answers queries on a socket, until it is stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock import Application, ConfigError
from penstock.support.names import did_you_mean

from ..noted_servers import own_server
from ..queries import Queries
from ..settings import check_libraries
from .guard import Address, Guard

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_MOST_CONNECTIONS = 2_000
_BACKLOG = 512
_UNREAD_MS = 60_000
"""After which a connection is closed whose client takes nothing of what is sent."""


class Pages(Protocol):
    """Pages beside the answers, at `/console/`: an ASGI application, closed when the server has ended."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

    def close(self) -> None:
        """Release everything."""


@dataclass(frozen=True)
class ServerOptions:
    """The address, access rules and content of a server.

    `stores` (None: all), without `excluded`, can be asked; the values of `masked` ones are not shown. `certificate` and
    `private_key`: files in PEM, for TLS. `hosts`: names that requests may be for, beside those of the address.
    `actions_token`: the token for actions; None: no actions. `pages`: makes the pages of the console; None: none.
    """

    address: Address
    token: str | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    hosts: Collection[str] = ()
    stores: Collection[str] | None = None
    excluded: Collection[str] = ()
    masked: Collection[str] = ()
    actions_token: str | None = None
    pages: Callable[[Queries, ServerOptions], Pages] | None = None

    def __post_init__(self) -> None:
        """Check the tokens. Raises ConfigError."""
        if self.token is not None and self.token == self.actions_token:
            raise ConfigError(
                "the token to read and the token to act (queries_actions_token, --actions-token-file) are the same: "
                "whoever reads could act; give them two tokens"
            )

    def at_port(self, port: int) -> ServerOptions:
        """Return the same options with another port."""
        return replace(self, address=replace(self.address, port=port))

    def names(self, known: Collection[str]) -> list[str]:
        """Return the names of the stores that can be asked. Raises ConfigError for one that is not known."""
        for name in (*(self.stores or ()), *self.excluded, *self.masked):
            if name not in known:
                advice = did_you_mean(name, known) or f"there are: {', '.join(sorted(known)) or 'none'}"
                raise ConfigError(f"there is no store {name!r} that queries can read; {advice}")
        return [name for name in (known if self.stores is None else self.stores) if name not in self.excluded]


@dataclass(frozen=True)
class ServerCargo:
    """What a process beside a run is sent.

    `is_local`: it reads the local state of this machine; else replicas. `own`: its URL for other machines.
    """

    application: Application
    options: ServerOptions
    is_local: bool
    own: str | None


class Server:
    """Answers queries on a socket that listens, while `run` runs.

    `own`: its URL for other machines (None: that of the setting `application_server`). Raises ConfigError for stores
    that are not there, and a certificate that cannot be used.
    """

    def __init__(
        self, queries: Queries, options: ServerOptions, listening: socket.socket, own: str | None = None
    ) -> None:
        import uvicorn

        from .answers import Answers
        from .forwarding import Forwarding
        from .service import service
        from .writing import OneWriteProtocol

        names = options.names(list(queries.stores()))
        guard = Guard(options.address, options.token, options.hosts, options.actions_token)
        self._pages = None if options.pages is None else options.pages(queries, options)
        answers = Answers(queries, names, list(options.masked))
        forwarding = Forwarding(queries, own_server(queries.application) if own is None else own)
        app = service(answers, guard, queries.application.id, self._pages, lambda: self._server.should_exit, forwarding)
        self._socket = listening
        config = uvicorn.Config(
            app, http=OneWriteProtocol, log_config=None, access_log=False, lifespan="on", ws="none",
            server_header=False, proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS, timeout_keep_alive=30, timeout_graceful_shutdown=5,
            ssl_certfile=options.certificate, ssl_keyfile=options.private_key,
        )  # fmt: skip
        try:
            config.load()
        except OSError as error:
            raise ConfigError(f"the certificate or its key cannot be used: {error}") from error
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Answer until `stop`, or in the main thread SIGINT or SIGTERM."""
        try:
            self._server.run([self._socket])
        finally:
            if self._pages is not None:
                self._pages.close()

    def stop(self) -> None:
        """Let `run` return soon; any thread may call it."""
        self._server.should_exit = True


def open_socket(options: ServerOptions, option: str) -> socket.socket:
    """Return a socket that listens on the address of the options.

    Raises ConfigError, naming `option`, for an address that cannot be opened, and one that others reach without a
    token; MissingPackageError where a library of the extra `serve` is not installed.
    """
    address = options.address
    address.check(option, has_token=options.token is not None)
    check_libraries(option)
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # A client that does not read what it asked for is cut; its connections inherit this.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        return made
    except OSError as error:
        raise ConfigError(
            f"{option} {address.host}:{address.port} cannot be opened ({error.strerror or error}): choose another "
            "port, or an address of this host"
        ) from error


def url_of(listening: socket.socket, options: ServerOptions, name: str = "") -> str:
    """Return the URL of a server. `name`: of this machine, for a server that listens on all of its addresses."""
    host = options.address.host
    if name and host in ("0.0.0.0", "::"):
        host = name
    scheme = "http" if options.certificate is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
