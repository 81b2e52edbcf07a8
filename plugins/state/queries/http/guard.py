"""Guard: lets only requests through that have the token, and that no page of another site has made."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock import ConfigError

from ..task_servers import is_loopback
from .refusals import Refused

if TYPE_CHECKING:
    from starlette.requests import Request

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Address:
    """Where a server listens: HOST:PORT, [IPV6]:PORT, or :PORT for loopback."""

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
        """Raise Refused for a request for another host, and for one that a page of another site has made."""
        host = request.headers.get("host", "")
        if (self.hosts or self.token is None) and _name(host) not in self._names:
            raise Refused(403, "wrong_host", "the request is for a host that this server is not")
        origin = request.headers.get("origin")
        if origin is not None and _authority(origin) != host:
            raise Refused(403, "wrong_origin", "requests of pages of other sites are refused")

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
