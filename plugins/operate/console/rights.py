"""Rights: what the token of a request, or the cookie that a browser got for it, allows."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request

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
        return max(bearer, self._of_cookie(request.cookies.get(COOKIE, "")), self._of_everyone)

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


def _is_same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))
