"""The headers of a dead letter, which describe its failure; named as in KIP-1034."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from ..processor import Failure
from ..record import Headers

PREFIX = "__streams.errors."
_NAMES = ("exception", "message", "stacktrace", "topic", "partition", "offset")
_ADDED = frozenset(PREFIX + name for name in _NAMES)

_MESSAGE_BYTES, _STACKTRACE_BYTES = 2_048, 8_192
_NEARLY_FULL_BYTES = 950_000
"""A record of this size gets shorter ones: with its headers it has to stay below a topic's usual 1 MiB."""
_SHORT_BYTES = 512
_MOST_DIGITS = 18
"""Of an offset: a number with one more may have more than its 63 bits."""


@dataclass(frozen=True)
class FailureNote:
    """The content of a dead letter's headers; None for a header that is missing.

    `topic`, `partition` and `offset` are the source record's: None for a failure in a punctuator.
    """

    exception: str | None
    message: str | None
    stacktrace: str | None
    topic: str | None
    partition: int | None
    offset: int | None


def letter_headers(failure: Failure) -> Headers:
    """Return the headers of a dead letter: its source record's, and ones that describe the failure.

    A source record that is itself a dead letter, sent back or read from its topic, loses the description of the failure
    before: a record that fails again and again would grow until the log refuses it. Long messages and stack traces lose
    their middle, so that a record that could be read can be produced.
    """
    original = _without_added(failure.headers)
    error = failure.error
    size = len(failure.raw_key or b"") + len(failure.raw_value or b"")
    size += sum(len(name) + len(value or b"") for name, value in original)
    short = size > _NEARLY_FULL_BYTES
    about: dict[str, bytes | None] = {
        "exception": _bytes(f"{type(error).__module__}.{type(error).__qualname__}"),
        "message": _cut(_bytes(error), _SHORT_BYTES if short else _MESSAGE_BYTES),
        "stacktrace": _cut(
            _bytes("".join(traceback.format_exception(error))), _SHORT_BYTES if short else _STACKTRACE_BYTES
        ),
        "topic": None if failure.topic is None else _bytes(failure.topic),
        "partition": None if failure.partition is None else _bytes(failure.partition),
        "offset": None if failure.offset is None else _bytes(failure.offset),
    }
    return (*original, *((PREFIX + name, about[name]) for name in _NAMES))


def split_headers(headers: Headers) -> tuple[Headers, FailureNote | None]:
    """Return the source record's headers, and the description of the failure in the added ones; None without those.

    The last of several headers of the same name is the added one: older releases appended to the description of an
    earlier failure.
    """
    said = {name.removeprefix(PREFIX): _text(value) for name, value in headers if name in _ADDED}
    if "exception" not in said:
        return headers, None
    original = _without_added(headers)
    return original, FailureNote(
        said.get("exception"),
        said.get("message"),
        said.get("stacktrace"),
        said.get("topic"),
        _number(said.get("partition")),
        _number(said.get("offset")),
    )


def _without_added(headers: Headers) -> Headers:
    return tuple(header for header in headers if header[0] not in _ADDED)


def _bytes(value: object) -> bytes:
    return str(value).encode("utf-8", "replace")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _number(text: str | None) -> int | None:
    """Return a partition or an offset; None if the text is no such number: anybody may have written these headers."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _cut(text: bytes, limit: int) -> bytes:
    """Return a text of about `limit` bytes at most: its beginning and, longer, its end, which tells most."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 4], text[-(limit - limit // 4) :]
    left_out = f"\n... {len(text) - limit} bytes left out ...\n".encode()
    # A character that was cut in two is left out.
    return head.decode("utf-8", "ignore").encode() + left_out + tail.decode("utf-8", "ignore").encode()
