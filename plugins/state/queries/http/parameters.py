"""The parameters of requests, and the description of all requests for OpenAPI."""

from __future__ import annotations

import hmac
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from penstock import TopicPartition
from penstock.plugins.state.copies.contents import LATEST

from ..copies import Bounds
from .guard import Refused, bad

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
        self.since = -inf
        """As `Bounds.since`."""
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

    def bounds(self) -> Bounds:
        """Return which versions may answer."""
        at_least: dict[TopicPartition, int] = {}
        for each in self._values.get("at_least", []):
            found = _AT_LEAST.fullmatch(each)
            if found is None:
                raise bad("at_least: expected TOPIC:PARTITION:OFFSET")
            partition, offset = TopicPartition(found[1], int(found[2])), int(found[3])
            at_least[partition] = max(offset, at_least.get(partition, 0))
        wait_ms = self.number("wait", _DEFAULT_WAIT_MS, most=MOST_WAIT_MS)
        return Bounds(self.flag("stale_ok"), at_least, wait_ms / 1000, self.since)

    def without_wait(self) -> Parameters:
        """Return the same parameters, with `wait=0`."""
        made = Parameters((), {})
        made._values, made.since = {**self._values, "wait": ["0"]}, self.since
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
        given = json.loads(body, parse_constant=_no_json)
    except (ValueError, RecursionError):
        raise bad('the body: expected JSON, {"keys": [...]}') from None
    if not isinstance(given, dict) or set(given) != {"keys"} or not isinstance(given["keys"], list):
        raise bad('the body: expected {"keys": [...]}, and nothing else')
    keys = given["keys"]
    if not 1 <= len(keys) <= MOST_KEYS:
        raise bad(f"keys: expected 1 to {MOST_KEYS} keys, found {len(keys)}")
    return keys


def _no_json(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


Schema = dict[str, Any]


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _number(least: int, most: int, default: int | None = None) -> Schema:
    schema: Schema = {"type": "integer", "minimum": least, "maximum": most}
    return schema if default is None else {**schema, "default": default}


_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean", "default": False}
_TIME = _number(0, LATEST)

_KEY_TEXT = "as text for the serdes str and bytes, and as JSON in the text form for others"
PARAMETERS: Mapping[str, tuple[str, Schema]] = {
    "key": (f"The key, {_KEY_TEXT}.", _TEXT),
    "start": (f"From this key on, {_KEY_TEXT}; keys are in the order of their serialized bytes.", _TEXT),
    "end": (f"Up to this key, included, {_KEY_TEXT}.", _TEXT),
    "prefix": ("Keys that begin with this text; of the serdes `str` and `bytes` only.", _TEXT),
    "json_keys": ("Whether key, start, end and prefix are JSON values, whatever the serde.", _FLAG),
    "window": ("Of a window store: the start of the window (ms since the epoch).", _TIME),
    "as_of": ("Of a versioned store: the version that was valid then (ms); else the latest one.", _TIME),
    "from": ("Windows that start, sessions that overlap and versions valid from this time on (ms).", _TIME),
    "to": ("Windows, sessions and versions up to this time (ms), included.", _TIME),
    "limit": ("How many entries the answer has at most; fewer where they are large.", _number(1, MOST_ENTRIES, 100)),
    "page": ("The `page` of the answer before; the other parameters stay.", _TEXT),
    "timestamps": ("Whether entries have the timestamps and headers of their values.", _FLAG),
    "stale_ok": ("Whether any committed version may answer, however old.", _FLAG),
    "at_least": (
        "TOPIC:PARTITION:OFFSET: only versions after which the records before this offset are processed.",
        {"type": "array", "items": {"type": "string", "pattern": "^.{1,249}:[0-9]{1,9}:[0-9]{1,18}$"}},
    ),
    "wait": ("How long to wait for such a version (ms).", _number(0, MOST_WAIT_MS, 1000)),
    "task": ("Only this task, such as 0_3.", _TEXT),
    "all_tasks": ("Whether to look up the key in every task, where it is not in that of its partition.", _FLAG),
}
_BOUNDS = ("timestamps", "stale_ok", "at_least", "wait", "task", "all_tasks")


@dataclass(frozen=True)
class Operation:
    """A request: its path, its parameters by name, the schema of its answer, and its errors beside 401, 403 and 503."""

    name: str
    path: str
    summary: str
    answer: str
    parameters: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    method: str = "get"


_OF_STORE = (400, 404, 409)
OPERATIONS = (
    Operation("stores", "/v1/stores", "The stores that can be asked", "Stores", errors=(400,)),
    Operation("store", "/v1/stores/{store}", "A store, and its copy in each task", "Store", errors=_OF_STORE),
    Operation(
        "metadata", "/v1/stores/{store}/metadata", "Which task has a key", "Metadata",
        ("key", "json_keys"), ("key",), _OF_STORE,
    ),
    Operation(
        "get", "/v1/stores/{store}/get", "The entry of a key", "Entry",
        ("key", "json_keys", "window", "as_of", *_BOUNDS), ("key",), _OF_STORE,
    ),
    Operation(
        "get_many", "/v1/stores/{store}/get", "The entries of several keys, null where there is none", "Entries",
        _BOUNDS, errors=(*_OF_STORE, 413), method="post",
    ),
    Operation(
        "entries", "/v1/stores/{store}/entries", "A page of entries; as application/x-ndjson all, streamed", "Page",
        ("key", "json_keys", "start", "end", "prefix", "from", "to", "limit", "page", *_BOUNDS),
        errors=(*_OF_STORE, GONE),
    ),
    Operation(
        "changes", "/v1/stores/{store}/changes", "Entries as commits change them, value null if deleted", "Entry",
        ("key", "json_keys", "start", "end", "prefix", "timestamps", "wait", "task", "all_tasks"), errors=_OF_STORE,
    ),
)  # fmt: skip
_ERRORS = {
    400: "the request does not follow this description",
    401: "the token is missing or wrong",
    403: "the request comes from a page of another origin, or is for another host",
    404: "there is no such store, or no value of this key",
    409: "the store cannot be read here, or a value has no text form",
    GONE: "another server has begun the page, or this one before it was started again, or the application was reset or "
    "resharded since: begin at the first page",
    413: "the body, or the answer, is too large",
    503: "no version that may answer is here now: ask again later",
}
_TEXT_FORM = "in penstock's text form: an object with one name such as `!bytes` is of a type that JSON lacks"
_ENTRY: Schema = {
    "type": "object",
    "required": ["key", "value"],
    "properties": {
        "key": {"description": _TEXT_FORM},
        "value": {"description": _TEXT_FORM},
        "timestamp": {"type": "integer", "description": "ms; of a version: when it began"},
        "valid_to": {
            "type": ["integer", "null"],
            "description": "of a version: when it ended (ms); -1: it is the latest; null in a change",
        },
        "headers": {"type": "array", "items": {"type": "array"}},
        "start": {"type": "integer", "description": "of a window or session (ms)"},
        "end": {"type": "integer", "description": "of a window or session (ms)"},
    },
}
_LAG: Schema = {
    "version": {"type": ["integer", "null"], "description": "the number of the version that answers; null: none now"},
    "behind": {"type": "integer", "description": "how many versions the last commit is ahead"},
}
_STORE: Schema = {"name": _TEXT, "kind": _TEXT, "masked": {"type": "boolean"}}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "required": sorted(properties), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_SCHEMAS: Schema = {
    "Stores": _object({"application": _TEXT, "stores": _list(_object(_STORE))}),
    "Store": _object({**_STORE, "tasks": _list(_object({"task": _TEXT, **_LAG}))}),
    "Metadata": _object(
        {
            "task": _TEXT,
            "partition": {"type": "integer"},
            **_LAG,
            "server": {"type": ["string", "null"], "description": "URL of the server where the application runs"},
            "copies": _list(_object({"server": {"type": ["string", "null"]}, **_LAG})),
        }
    ),
    "Entry": _ENTRY,
    "Entries": _object({"entries": _list({"anyOf": [_ref("Entry"), {"type": "null"}]})}),
    "Page": _object({"entries": _list(_ref("Entry")), "page": {"type": ["string", "null"]}}),
    "Error": _object({"error": _object({"code": _TEXT, "message": _TEXT})}),
}
_LAST_EVENT: Schema = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The id of the last event of an earlier answer, to continue behind it.",
    "schema": _TEXT,
}
_KEYS = _object({"keys": {"type": "array", "items": {}, "minItems": 1, "maxItems": MOST_KEYS}})


def description(application_id: str, *, has_token: bool) -> Schema:
    """Return the OpenAPI description (3.1) of a server."""
    paths: Schema = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method] = _operation(each)
    made: Schema = {
        "openapi": "3.1.0",
        "info": {"title": f"Stores of {application_id}", "version": "1"},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }
    if has_token:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
    return made


def _operation(each: Operation) -> Schema:
    parameters = [
        {
            "name": name,
            "in": "query",
            "required": name in each.required,
            "description": PARAMETERS[name][0],
            "schema": PARAMETERS[name][1],
        }
        for name in each.parameters
    ]
    if "{store}" in each.path:
        parameters.insert(0, {"name": "store", "in": "path", "required": True, "schema": _TEXT})
    errors = {
        str(status): {"description": _ERRORS[status], "content": {"application/json": {"schema": _ref("Error")}}}
        for status in sorted({*each.errors, 401, 403, 503})
    }
    if each.name == "changes":
        parameters.append(_LAST_EVENT)
    answer = {"description": each.summary, "content": {"application/json": {"schema": _ref(each.answer)}}}
    if each.name == "entries":
        answer["content"]["application/x-ndjson"] = {"schema": _ref("Entry")}  # type: ignore[index]
    if each.name == "changes":
        answer["content"] = {"text/event-stream": {"schema": _TEXT}}
    made: Schema = {
        "operationId": each.name,
        "summary": each.summary,
        "parameters": parameters,
        "responses": {"200": answer, **errors},
    }
    if each.method == "post":
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": _KEYS}}}
    return made
