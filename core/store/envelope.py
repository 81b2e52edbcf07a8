"""The envelope around a stored value: the value, and optionally its timestamp, headers and expiry.

A byte of flags, then what the flags say is there, in this order: expiry (8 bytes; another flag says by which clock),
timestamp (8 bytes), headers (a length of 4 bytes and as many bytes), and the value to the end. A plain value costs one
byte. All numbers are big-endian.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from ..errors import StoreError
from ..record import Headers

PLAIN = b"\x00"
"""The envelope of a value alone: put it in front."""

EXPIRING = 1
"""The flag of an envelope with an expiry by stream time, which follows the flags."""
EXPIRING_BY_WALL_CLOCK = 9
"""The flags of one with an expiry by the wall clock."""

STAMPED = 2
"""The flag of an envelope with a timestamp, which follows the flags."""
pack_stamp = Struct(">Bq").pack
"""pack_stamp(STAMPED, timestamp): the bytes in front of a value with a timestamp, for loops over many values."""

_EXPIRY, _TIMESTAMP, _HEADERS, _WALL_CLOCK = 1, STAMPED, 4, 8
_LONG = Struct(">q")
_LENGTH = Struct(">i")


class Envelope(NamedTuple):
    """The content of an envelope. Times are milliseconds; a `timestamp` or `expiry` of None is not there.

    `by_wall_clock`: the expiry is a time of the wall clock, not of stream time.
    """

    value: bytes
    timestamp: int | None = None
    headers: Headers = ()
    expiry: int | None = None
    by_wall_clock: bool = False


class Expiry(NamedTuple):
    """When an entry expires (ms), and by which clock."""

    time: int
    by_wall_clock: bool


def wrap(
    value: bytes,
    timestamp: int | None = None,
    headers: Headers = (),
    expiry: int | None = None,
    by_wall_clock: bool = False,
) -> bytes:
    """Return an envelope.

    >>> unwrap(wrap(b"v", timestamp=5, headers=(("h", None),)))
    Envelope(value=b'v', timestamp=5, headers=(('h', None),), expiry=None, by_wall_clock=False)
    """
    flags, parts = 0, []
    if expiry is not None:
        flags |= EXPIRING_BY_WALL_CLOCK if by_wall_clock else EXPIRING
        parts.append(_LONG.pack(expiry))
    if timestamp is not None:
        flags |= _TIMESTAMP
        parts.append(_LONG.pack(timestamp))
    if headers:
        flags |= _HEADERS
        packed = _pack_headers(headers)
        parts += _LENGTH.pack(len(packed)), packed
    return b"".join((bytes((flags,)), *parts, value))


def unwrap(data: bytes) -> Envelope:
    """Return the content of an envelope. Raises StoreError for anything that is none."""
    try:
        flags, at = data[0], 1
        if flags & ~(_EXPIRY | _TIMESTAMP | _HEADERS | _WALL_CLOCK):
            raise StoreError(f"a stored value was written by a newer version of penstock (flags {flags}): upgrade")
        expiry = timestamp = None
        headers: Headers = ()
        if flags & _EXPIRY:
            (expiry,) = _LONG.unpack_from(data, at)
            at += 8
        if flags & _TIMESTAMP:
            (timestamp,) = _LONG.unpack_from(data, at)
            at += 8
        if flags & _HEADERS:
            (length,) = _LENGTH.unpack_from(data, at)
            headers = _unpack_headers(data[at + 4 : at + 4 + length])
            at += 4 + length
    except (IndexError, ValueError, struct_error) as error:
        raise StoreError(f"a stored value is damaged: {data[:40]!r}") from error
    return Envelope(data[at:], timestamp, headers, expiry, bool(flags & _WALL_CLOCK))


def wrap_stamped(value: bytes, timestamp: int) -> bytes:
    """Return the same envelope as `wrap(value, timestamp)`, faster."""
    return pack_stamp(STAMPED, timestamp) + value


def value_of(data: bytes) -> bytes:
    """Return the value in an envelope."""
    return data[1:] if data[:1] == PLAIN else unwrap(data).value


def expiry_of(data: bytes) -> Expiry | None:
    """Return the expiry in an envelope, or None."""
    flags = data[0]
    return Expiry(_LONG.unpack_from(data, 1)[0], bool(flags & _WALL_CLOCK)) if flags & _EXPIRY else None


def with_expiry(data: bytes, expiry: int, by_wall_clock: bool = False) -> bytes:
    """Return an envelope without expiry as one with it."""
    return pack_stamp(data[0] | (EXPIRING_BY_WALL_CLOCK if by_wall_clock else EXPIRING), expiry) + data[1:]


def _pack_headers(headers: Headers) -> bytes:
    parts: list[bytes] = []
    for name, value in headers:
        encoded = name.encode()
        parts += _LENGTH.pack(len(encoded)), encoded, _LENGTH.pack(-1 if value is None else len(value)), value or b""
    return b"".join(parts)


def _unpack_headers(data: bytes) -> Headers:
    headers, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        name = data[at + 4 : at + 4 + length].decode()
        at += 4 + length
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4
        value = None if length < 0 else data[at : at + length]
        at += max(length, 0)
        headers.append((name, value))
    return tuple(headers)
