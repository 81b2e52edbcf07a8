"""The parameters of a request, checked: bounds, keys, times, limits and page tokens."""

from __future__ import annotations

import hmac
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from penstock import TopicPartition
from penstock.plugins.state.copies.contents import LATEST

from ..copies import Bounds
from .refusals import Refused, bad

MOST_ENTRIES = 10_000
"""How many entries a page has at most."""
MOST_KEYS = 1_000
"""How many keys one request names at most."""
MOST_WAIT_MS = 30_000
GONE = 410
"""The status of an answer to a page token that another server has signed."""
_SIGNATURE_BYTES = 32
_DEFAULT_WAIT_MS = 1_000
_AT_LEAST = re.compile(r"(.{1,249}):(\d{1,9}):(\d{1,18})")


class Page(NamedTuple):
    """Where a page begins: in a task, behind the entry at `rank` among those of a key (serialized).

    `skipped`: behind so many entries of that rank, as in windows that keep duplicates, and in lists. `division`: names
    the tasks among which keys were divided, and the application's incarnation.
    """

    task: str
    division: str
    key: bytes | None = None
    rank: tuple[int, ...] = ()
    skipped: int = 0

    def token(self, secret: bytes) -> str:
        """Return this as text that a client gives back, signed with a secret."""
        parts = [self.task, self.division, None if self.key is None else self.key.hex(), self.rank, self.skipped]
        data = json.dumps(parts, separators=(",", ":")).encode()
        return urlsafe_b64encode(_signature(secret, data) + data).decode()

    @classmethod
    def of_token(cls, token: str, secret: bytes) -> Page:
        """Return the page of a token that was signed with the same secret; only then is the key read by its serde.

        Raises Refused: of status GONE for a token with another signature, and for text that is none.
        """
        try:
            signed = urlsafe_b64decode(token.encode("ascii"))
        except ValueError:
            raise bad("page: expected the value of `page` of the answer before") from None
        signature, data = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, _signature(secret, data)):
            raise page_gone(
                "no page of this store, or one that another server has begun, or this one before it was started again"
            )
        task, division, key, rank, skipped = json.loads(data)
        return cls(task, division, None if key is None else bytes.fromhex(key), tuple(rank), skipped)


def page_gone(reason: str) -> Refused:
    """Return the refusal of a page token that leads nowhere any more."""
    return Refused(GONE, "page_gone", f"page: {reason}; begin at the first page")


class Parameters:
    """The parameters in the query of a request. Each method raises Refused for what it does not take."""

    def __init__(self, given: Iterable[tuple[str, str]], known: Mapping[str, object]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in given:
            if name not in known:
                raise bad(f"parameter {name[:50]!r} is unknown here; known are {', '.join(sorted(known))}")
            self._values.setdefault(name, []).append(value)
        for name, values in self._values.items():
            if len(values) > 1 and name != "at_least":
                raise bad(f"{name}: expected once, found {len(values)} times")

    @classmethod
    def of(cls, query: bytes, known: Mapping[str, object]) -> Parameters:
        """Return the parameters of a query as it came. Raises Refused for text that is not in UTF-8, too."""
        try:
            return cls(parse_qsl(query.decode("latin-1"), True, errors="strict"), known)
        except UnicodeError:
            raise bad("the query of the request: expected text in UTF-8, each byte as %XX") from None

    def names(self) -> set[str]:
        """Return the names of the parameters that were given."""
        return set(self._values)

    def text(self, name: str) -> str | None:
        """Return a parameter; None if it was not given."""
        values = self._values.get(name)
        return None if values is None else values[0]

    def flag(self, name: str) -> bool:
        """Return a parameter that is "true" or "false" (the default)."""
        text = self.text(name)
        if text not in (None, "true", "false"):
            raise bad(f"{name}: expected true or false")
        return text == "true"

    def number(self, name: str, default: int, least: int = 0, most: int = LATEST) -> int:
        """Return a whole number within limits."""
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) or not least <= int(text) <= most:
            raise bad(f"{name}: expected a whole number from {least} to {most}")
        return int(text)

    def bounds(self, *, at_once: bool = False) -> Bounds:
        """Return which versions may answer; `at_once` as in Bounds."""
        at_least = {}
        for each in self._values.get("at_least", []):
            found = _AT_LEAST.fullmatch(each)
            if found is None:
                raise bad("at_least: expected TOPIC:PARTITION:OFFSET")
            at_least[TopicPartition(found[1], int(found[2]))] = int(found[3])
        wait_ms = self.number("wait", _DEFAULT_WAIT_MS, most=MOST_WAIT_MS)
        return Bounds(self.flag("stale_ok"), at_least, wait_ms / 1000, at_once)

    def without_wait(self) -> Parameters:
        """Return the same parameters, with `wait=0`."""
        made = Parameters((), {})
        made._values = {**self._values, "wait": ["0"]}
        return made

    def page(self, secret: bytes) -> Page | None:
        """Return where the page begins, by a token that was signed with `secret`; None for the first one."""
        text = self.text("page")
        return None if text is None else Page.of_token(text, secret)


def _signature(secret: bytes, data: bytes) -> bytes:
    return hmac.digest(secret, data, "sha256")


def keys_of_body(body: bytes) -> list[Any]:
    """Return the keys that a request's body names, as JSON values. Raises Refused."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise bad('the body: expected JSON, {"keys": [...]}') from None
    if not isinstance(given, dict) or set(given) != {"keys"} or not isinstance(given["keys"], list):
        raise bad('the body: expected {"keys": [...]}, and nothing else')
    keys = given["keys"]
    if not 1 <= len(keys) <= MOST_KEYS:
        raise bad(f"keys: expected 1 to {MOST_KEYS} keys, found {len(keys)}")
    return keys
