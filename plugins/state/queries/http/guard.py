"""Who may ask a server of queries, and the errors that it answers."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock import ConfigError, LogError, PenstockError, StaleStoreError, StoreUnavailableError
from penstock.support.text_form import NoTextForm

from ..noted_servers import is_loopback

if TYPE_CHECKING:
    from starlette.requests import Request


_log = logging.getLogger("penstock.queries")

_LATER = "the store cannot answer now: its copy is being restored, is behind, or is on another machine; ask again later"


class Refused(Exception):
    """A request that is not answered. `code` is for programs, `message` for people; it has no paths and no secrets."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message.encode("utf-8", "backslashreplace").decode()


def bad(message: str) -> Refused:
    """Return the refusal of a request that does not follow the description."""
    return Refused(400, "bad_request", message)


def refusal(error: Exception) -> Refused:
    """Return the refusal that an error of a query is, whatever raised it. Details of this machine go to the log only.

    So does what a serde says of a row that it cannot read: it shows the value, which may be one that is masked. A key
    that a client gave and that does not fit is a ConfigError.
    """
    if isinstance(error, Refused):
        return error
    if not isinstance(error, PenstockError):  # a serde of another package may raise anything
        _log.error("a query failed", exc_info=error)
        return Refused(500, "failed", "the server failed; its log says why")
    if isinstance(error, NoTextForm):
        return Refused(409, "no_text_form", str(error))
    if isinstance(error, ConfigError):
        return bad(str(error))
    if isinstance(error, (StoreUnavailableError, StaleStoreError)):
        _log.debug("%s", error)
        return Refused(503, "unavailable", _LATER)
    _log.warning("a query failed: %s", error)
    if isinstance(error, LogError):
        return Refused(503, "unavailable", "the log cannot be reached; ask again later")
    return Refused(409, "not_readable", "the store cannot be read in this way; the log of the server says why")


_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Address:
    """The address of a server: HOST:PORT, [IPV6]:PORT, or :PORT for loopback."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str, option: str) -> Address:
        """Return the address of a text. Raises ConfigError, naming the option."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ConfigError(f"{option} {text!r}: expected HOST:PORT, such as 127.0.0.1:8080")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def check(self, option: str, *, has_token: bool) -> None:
        """Raise ConfigError for an address that others reach, without a token."""
        if not self.is_loopback and not has_token:
            raise ConfigError(
                f"{option} {self.host}:{self.port}: other machines reach it, and there is no token: give a file with "
                "one by --token-file, or listen on 127.0.0.1"
            )


def checked_token(token: str | None, source: str) -> str | None:
    """Return a token. Raises ConfigError, naming where it comes from, for one that is too short or not plain text."""
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigError(f"{source}: expected a token of 16 or more printable ASCII characters without spaces")
    return token


@dataclass(frozen=True)
class Guard:
    """Checks requests. `token`: each must have it, as a bearer token. `hosts`: names that requests may be for.

    `actions_token`: allows more than `token`, so it will do as well.

    A server on loopback without a token is only for its own names: else a page of any site could reach it in the
    reader's browser, under a name of its own that leads to loopback.
    """

    address: Address
    token: str | None = None
    hosts: Collection[str] = field(default_factory=tuple)
    actions_token: str | None = None

    @cached_property
    def _names(self) -> Collection[str]:
        """The names that this server has."""
        return {*self.hosts, *(_LOOPBACK_NAMES if self.address.is_loopback else ()), self.address.host}

    def check(self, request: Request) -> None:
        """Raise Refused for a request that is not allowed."""
        self.check_origin(request)
        if self.token is not None:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._has(given.strip()):
                raise Refused(401, "no_token", "send the token in the header `Authorization: Bearer TOKEN`")

    def check_origin(self, request: Request) -> None:
        """Raise Refused for a request for another host, or from a page of another site."""
        host = request.headers.get("host", "")
        if (self.hosts or self.token is None) and _name(host) not in self._names:
            raise Refused(403, "wrong_host", "the request is for a host that this server is not")
        origin = request.headers.get("origin")
        if origin is not None and _authority(origin) != host:
            raise Refused(
                403, "wrong_origin", "requests of pages of other sites are refused; a proxy in front of this server "
                "has to pass the header Host on as the browser sent it"
            )  # fmt: skip

    def _has(self, given: str) -> bool:
        known = [each.encode() for each in (self.token, self.actions_token) if each is not None]
        return any(hmac.compare_digest(given.encode("utf-8", "replace"), each) for each in known)


def _name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
