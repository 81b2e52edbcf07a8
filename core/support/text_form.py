"""The text form of values: JSON where JSON has the type, and an object with one tag for each type that it lacks."""

from __future__ import annotations

import json
import reprlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from math import copysign, isfinite, isnan
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from ..errors import SerdeError
from ..record import Windowed


class NoTextForm(SerdeError):
    """A value is of a type that has no text form."""


_TAG = "!"
"""How tags begin. An object with one name that begins so is a tagged value, or is written with the tag `!dict`."""
_NUMBER_BITS = 4096
"""Longer integers are hexadecimal text: Python reads no decimal number of more than 4,300 digits."""


def to_json(value: Any) -> Any:
    """Return the text form of a value as JSON data: what `json.dumps` writes, and `from_json` makes the value of.

    None, bool, int, float, str, list, and a dict whose keys are text are what they are in JSON. Others are an object
    with a tag: bytes, tuple, set, frozenset, Decimal, UUID, datetime, date, time, timedelta, a dict with other keys,
    nan, infinity, and the key of a window. Raises NoTextForm for a value of any other type, a subclass included.

    >>> to_json({"a": [1, (2.5, b"x")]}), to_json({3: None})
    ({'a': [1, {'!tuple': [2.5, {'!bytes': 'eA=='}]}]}, {'!dict': [[3, None]]})
    """
    try:
        return _WRITERS[type(value)](value)
    except KeyError:
        # The value itself is not in the message: it may be one that is masked.
        raise NoTextForm(
            f"a value of the type {type(value).__module__}.{type(value).__qualname__} has no text form: give the store "
            "or topic a serde whose values have one, such as of(TYPE)"
        ) from None
    except RecursionError as error:
        raise NoTextForm(f"a {type(value).__name__} nests too deep for a text form") from error


def from_json(data: Any) -> Any:
    """Return the value that has this text form. Raises SerdeError for data that does not fit its tag.

    >>> from_json({"!tuple": [{"!decimal": "1.50"}, {"other": 1}]})
    (Decimal('1.50'), {'other': 1})
    """
    try:
        return _value(data)
    except RecursionError as error:
        raise SerdeError("the text form nests too deep") from error


def _value(data: Any) -> Any:
    if isinstance(data, list):
        return [_value(each) for each in data]
    if not isinstance(data, dict):
        return data
    if len(data) == 1:
        ((tag, content),) = data.items()
        if (read := _READERS.get(tag)) is not None:
            try:
                return read(content)
            except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, OSError) as error:
                raise SerdeError(f"{reprlib.repr(content)} cannot be read as {tag} of a text form: {error}") from error
    return {name: _value(each) for name, each in data.items()}


# ---------------------------------------------------------------- writing


def _as_it_is(value: Any) -> Any:
    return value


def _int(value: int) -> Any:
    return value if value.bit_length() <= _NUMBER_BITS else {"!int": hex(value)}


def _float(value: float) -> Any:
    # A nan has a sign, too, of which `repr` says nothing.
    return value if isfinite(value) else {"!float": "-nan" if isnan(value) and copysign(1, value) < 0 else repr(value)}


def _str(value: str) -> Any:
    # JSON joins two surrogates to one character, so text that has some is not itself in JSON.
    return value if value.isascii() or _is_utf8(value) else {"!str": _base64(value.encode("utf-8", _SURROGATES))}


_SURROGATES = "surrogatepass"


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _list(value: Iterable[Any]) -> list[Any]:
    return [to_json(each) for each in value]


def _dict(value: Mapping[Any, Any]) -> Any:
    for name in value:
        if type(name) is not str or not (name.isascii() or _is_utf8(name)) or (len(value) == 1 and name[:1] == _TAG):
            return {"!dict": [[to_json(key), to_json(each)] for key, each in value.items()]}
    return {name: to_json(each) for name, each in value.items()}


def _in_order(value: Iterable[Any]) -> list[Any]:
    return sorted(_list(value), key=json.dumps)


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _datetime(value: datetime) -> Any:
    zone = value.tzinfo
    if not value.fold and (zone is None or (type(zone) is timezone and _is_plain_offset(zone))):
        return {"!datetime": value.isoformat()}
    parts: dict[str, Any] = {"at": value.replace(tzinfo=None, fold=0).isoformat(), "fold": value.fold}
    if type(zone) is ZoneInfo and zone.key:
        parts["zone"] = zone.key
    elif type(zone) is timezone:
        parts |= {"offset": zone.utcoffset(None) // _MICROSECOND}
        has_name = zone.tzname(None) != timezone(zone.utcoffset(None)).tzname(None)
        parts |= {"name": _str(zone.tzname(None))} if has_name else {}
    elif zone is not None:
        raise NoTextForm(
            f"a datetime with the time zone {zone!r} has no text form: use datetime.timezone or zoneinfo.ZoneInfo"
        )
    return {"!datetime": parts}


_MICROSECOND = timedelta(microseconds=1)


def _is_plain_offset(zone: timezone) -> bool:
    # Python reads an offset of less than a second as UTC.
    offset = zone.utcoffset(None)
    return zone is UTC or (not offset.microseconds and zone.tzname(None) == timezone(offset).tzname(None))


def _time(value: time) -> Any:
    if value.tzinfo is not None or value.fold:
        raise NoTextForm("a time with a time zone has no text form: keep it without one, or as a datetime")
    return {"!time": value.isoformat()}


def _windowed(value: Windowed) -> Any:
    return windowed_json(to_json(value.key), value)


def windowed_json(key: Any, window: Windowed) -> Any:
    """Return the text form of a windowed key whose key has the text form `key`."""
    return {"!windowed": {"key": key, "start": window.start, "end": window.end}}


_WRITERS: dict[type, Callable[[Any], Any]] = {
    type(None): _as_it_is,
    bool: _as_it_is,
    int: _int,
    float: _float,
    str: _str,
    list: _list,
    dict: _dict,
    tuple: lambda value: {"!tuple": _list(value)},
    set: lambda value: {"!set": _in_order(value)},
    frozenset: lambda value: {"!frozenset": _in_order(value)},
    bytes: lambda value: {"!bytes": _base64(value)},
    bytearray: lambda value: {"!bytearray": _base64(value)},
    Decimal: lambda value: {"!decimal": str(value)},
    UUID: lambda value: {"!uuid": str(value)},
    datetime: _datetime,
    date: lambda value: {"!date": value.isoformat()},
    time: _time,
    timedelta: lambda value: {"!timedelta": [value.days, value.seconds, value.microseconds]},
    Windowed: _windowed,
}


# ---------------------------------------------------------------- reading


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


def _moment(content: Any) -> datetime:
    if isinstance(content, str):
        return datetime.fromisoformat(content)
    zone: tzinfo | None = None
    if "zone" in content:
        zone = ZoneInfo(content["zone"])
    elif "offset" in content:
        offset = content["offset"] * _MICROSECOND
        zone = timezone(offset, _value(content["name"])) if "name" in content else timezone(offset)
    return datetime.fromisoformat(content["at"]).replace(tzinfo=zone, fold=content["fold"])


def _window(content: Any) -> Windowed:
    return Windowed(_value(content["key"]), int(content["start"]), int(content["end"]))


_READERS: dict[str, Callable[[Any], Any]] = {
    "!null": lambda content: None,
    "!int": lambda content: int(content, 16),
    "!float": lambda content: float(content),
    "!str": lambda content: _bytes(content).decode("utf-8", _SURROGATES),
    "!dict": lambda content: {_value(key): _value(each) for key, each in content},
    "!tuple": lambda content: tuple(map(_value, content)),
    "!set": lambda content: set(map(_value, content)),
    "!frozenset": lambda content: frozenset(map(_value, content)),
    "!bytes": _bytes,
    "!bytearray": lambda content: bytearray(_bytes(content)),
    "!decimal": lambda content: Decimal(content),
    "!uuid": lambda content: UUID(content),
    "!datetime": _moment,
    "!date": lambda content: date.fromisoformat(content),
    "!time": lambda content: time.fromisoformat(content),
    "!timedelta": lambda content: timedelta(*content),
    "!windowed": _window,
}
