"""The `msgpack` serde: Python's plain data, exact in value and type; the default for state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from functools import partial
from struct import Struct
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from msgpack import ExtType, Packer, unpackb

from penstock import Serde, SerdeError

TUPLE, SET, FROZENSET, BIG_INT, DATETIME, DATE, TIMEDELTA, DECIMAL, UUID_ = range(1, 10)
"""Extension types that penstock writes; 0 to 63 are its own, 64 to 127 are yours."""

_RESERVED = range(64)
_DEPTH = 32


class MsgpackSerde(Serde[Any]):
    """MessagePack with extension types for what it lacks, so that a value comes back equal and of the same type.

    Holds None, bool, int of any size, float, str (lone surrogates too), bytes, list, dict, tuple, set, frozenset,
    datetime (naive, or with a `datetime.timezone` or `zoneinfo.ZoneInfo`), date, timedelta, Decimal and UUID, in each
    other, and every hashable one of them as a key of a dict. Only these very types: a subclass (a NamedTuple, an
    IntEnum, an OrderedDict, a numpy number) would come back as something else, so it is a SerdeError that says what to
    do. A bytearray or memoryview is written as, and comes back as, bytes. Tuples and sets nest up to 32 deep, lists and
    dicts up to 500.

    As a key: what is written alike is one key. Sets are (in order of their elements' bytes), dicts keep their order.
    Python calls some values equal that are different keys here, alone and inside of tuples: those of different types
    (1, 1.0 and True), 0.0 and -0.0, Decimals with other digits (1.5 and 1.50), and aware datetimes of one instant with
    another wall time or zone.
    Scans follow the bytes: text of up to 31 bytes in order of length, then by code point; datetimes, dates
    and timedeltas in order of time. For ranges over text or numbers use the serdes `str` and `int`.

    The layout of the extension types is in this module's source, below, and does not change.

    >>> serde = MsgpackSerde()
    >>> serde.deserialize(serde.serialize({("alice", 1): [2.5, date(2024, 2, 29)]}))
    {('alice', 1): [2.5, datetime.date(2024, 2, 29)]}
    """

    saved_name = "penstock.plugins.serdes.msgpack.MsgpackSerde"
    immutable_types = frozenset({str, int, float, bool, bytes})

    def __init__(self) -> None:
        self._writer = _Writer(1, None)
        self._pack = self._writer.pack
        self._read_extension = _reader(1, None)

    def __reduce__(self) -> tuple[type[MsgpackSerde], tuple[()]]:
        return type(self), ()

    def serialize(self, value: Any) -> bytes:
        """Return `value` as MessagePack. Raises SerdeError naming a type that cannot be written."""
        try:
            if type(value) is tuple:  # the commonest extension type by far, so it skips a call or two
                return self._writer.extension(TUPLE, self._writer.inside(list(value)))
            return self._pack(value)
        except UnicodeEncodeError:
            # Lone surrogates are rare, and a packer that lets them through is half as fast for all text.
            pass
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _unwritable(value, error) from error
        try:
            return _Writer(1, _SURROGATES).pack(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _unwritable(value, error) from error

    def serializer(self) -> Callable[[Any], bytes]:
        """Return the packer itself: text with lone surrogates is refused, which only `serialize` writes."""
        return self._pack

    def deserialize_column(self, column: Sequence[bytes | None]) -> list[Any]:
        hook = self._read_extension
        return [None if data is None else unpackb(data, ext_hook=hook, strict_map_key=False) for data in column]

    def deserialize(self, data: bytes) -> Any:
        """Return the value. Raises SerdeError for bytes that are not MessagePack, or have an unknown extension type."""
        try:
            return unpackb(data, ext_hook=self._read_extension, strict_map_key=False)
        except UnicodeDecodeError:
            pass
        except SerdeError:
            raise
        except Exception as error:
            raise _unreadable(data, error) from error
        try:
            hook = _reader(1, _SURROGATES)
            return unpackb(data, ext_hook=hook, strict_map_key=False, unicode_errors=_SURROGATES)
        except SerdeError:
            raise
        except Exception as error:
            raise _unreadable(data, error) from error


_SURROGATES = "surrogatepass"


# ---------------------------------------------------------------- writing


class _Writer:
    """A packer for one depth of nesting; what is inside of extension types goes to that of the next depth.

    One packer for all depths would not do: its buffer holds one value at a time.
    """

    def __init__(self, depth: int, unicode_errors: str | None) -> None:
        self._depth = depth
        self._unicode_errors = unicode_errors
        self.pack: Callable[[Any], bytes] = Packer(
            default=self._extend,
            strict_types=True,
            unicode_errors=unicode_errors,
            buf_size=4096,  # grows to the largest value; the default is 256 KiB for each serde
        ).pack
        self.inside: Callable[[Any], bytes] = self._first_inside
        plain = Packer(buf_size=64)
        self.extension: Callable[[int, bytes], bytes] = plain.pack_ext_type
        self.array_header: Callable[[int], bytes] = plain.pack_array_header

    def check_depth(self) -> None:
        """Raise SerdeError where a tuple or set is too deep inside of others."""
        if self._depth > _DEPTH:
            raise SerdeError(f"serde 'msgpack': tuples and sets nest more than {_DEPTH} deep; flatten the value")

    def _first_inside(self, value: Any) -> bytes:
        self.check_depth()
        self.inside = _Writer(self._depth + 1, self._unicode_errors).pack
        return self.inside(value)

    def _extend(self, value: Any) -> ExtType:
        # tuple.__new__: ExtType's own constructor would check the arguments in Python.
        if type(value) is tuple:
            return _new(ExtType, (TUPLE, self.inside(list(value))))
        write = _WRITERS.get(type(value))
        if write is None:
            raise SerdeError(_no_such_type(value))
        return _new(ExtType, write(self, value))


_new = tuple.__new__
_Extension = tuple[int, bytes]


def _write_set(code: int, writer: _Writer, value: frozenset[Any]) -> _Extension:
    """Write the elements as a MessagePack array (as for a tuple), in order of their bytes."""
    elements = sorted([writer.inside(element) for element in value])
    if not elements:
        writer.check_depth()
    return code, writer.array_header(len(elements)) + b"".join(elements)


_MOMENT = Struct(">HBBBBBIB")
_OFFSET = Struct(">q")
_FOLD, _FIXED, _KEY, _NAME = 1, 2, 4, 8


def _write_datetime(writer: _Writer, value: datetime) -> _Extension:
    """Write year (2 bytes), month, day, hour, minute, second (1 each), microsecond (4), flags (1), and the zone.

    Flags: 1 the later of two equal wall times (fold), 2 a fixed offset follows (8 bytes of microseconds),
    4 an IANA key follows in UTF-8, 8 (with 2) the offset's own name follows in UTF-8. All numbers big-endian.
    """
    zone = value.tzinfo
    if zone is None:
        flags, written = value.fold, b""
    elif type(zone) is timezone:
        offset, name = zone.utcoffset(None), zone.tzname(None)
        flags, written = value.fold | _FIXED, _OFFSET.pack(offset // _MICROSECOND)
        if zone is not UTC and name != timezone(offset).tzname(None):
            flags, written = flags | _NAME, written + name.encode("utf-8", _SURROGATES)
    elif type(zone) is ZoneInfo and zone.key:
        flags, written = value.fold | _KEY, zone.key.encode()
    else:
        raise SerdeError(
            f"serde 'msgpack': a datetime with the time zone {_name(zone)} {zone} cannot be kept as it is; "
            "use datetime.timezone or zoneinfo.ZoneInfo (`value.astimezone(datetime.timezone.utc)`)"
        )
    moment = _MOMENT.pack(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, flags
    )
    return DATETIME, moment + written


_MICROSECOND = timedelta(microseconds=1)
_ORDINAL = Struct(">I")


_SPAN = Struct(">III")
_SPAN_DAYS = 1_000_000_000

_WRITERS: dict[type, Callable[[_Writer, Any], _Extension]] = {
    set: partial(_write_set, SET),
    frozenset: partial(_write_set, FROZENSET),
    # Beyond 64 bits: two's complement, big-endian, as short as it goes.
    int: lambda _, value: (BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)),
    datetime: _write_datetime,
    # The day's number, 1 January of year 1 being 1, in 4 bytes, big-endian.
    date: lambda _, value: (DATE, _ORDINAL.pack(value.toordinal())),
    # Days + 1,000,000,000, seconds and microseconds, 4 bytes each, big-endian.
    timedelta: lambda _, value: (TIMEDELTA, _SPAN.pack(value.days + _SPAN_DAYS, value.seconds, value.microseconds)),
    # The number as text in ASCII, trailing zeros and sign of zero included.
    Decimal: lambda _, value: (DECIMAL, str(value).encode("ascii")),
    UUID: lambda _, value: (UUID_, value.bytes),
}


# ---------------------------------------------------------------- reading


def _reader(depth: int, unicode_errors: str | None) -> Callable[[int, bytes], Any]:
    """Return the reader of extension types at one depth of nesting."""
    inside: Callable[[int, bytes], Any] | None = None

    def read_extension(code: int, data: bytes) -> Any:
        nonlocal inside
        kind = _COLLECTIONS.get(code)
        if kind is not None:
            if inside is None:
                if depth > _DEPTH:
                    raise SerdeError(f"serde 'msgpack': tuples and sets nest more than {_DEPTH} deep")
                inside = _reader(depth + 1, unicode_errors)
            elements = unpackb(data, ext_hook=inside, strict_map_key=False, unicode_errors=unicode_errors)
            if type(elements) is not list:
                raise SerdeError(f"serde 'msgpack': extension type {code} holds no array")
            return kind(elements)
        read = _READERS.get(code)
        if read is not None:
            return read(data)
        if code in _RESERVED:
            raise SerdeError(f"serde 'msgpack': extension type {code} is not known to this version of penstock")
        return ExtType(code, data)

    return read_extension


def _read_datetime(data: bytes) -> datetime:
    year, month, day, hour, minute, second, microsecond, flags = _MOMENT.unpack_from(data)
    zone: tzinfo | None = None
    if flags & _FIXED:
        offset = timedelta(microseconds=_OFFSET.unpack_from(data, _MOMENT.size)[0])
        if flags & _NAME:
            zone = timezone(offset, data[_MOMENT.size + _OFFSET.size :].decode("utf-8", _SURROGATES))
        else:
            zone = timezone(offset) if offset else UTC
    elif flags & _KEY:
        zone = ZoneInfo(data[_MOMENT.size :].decode())
    return datetime(year, month, day, hour, minute, second, microsecond, zone, fold=flags & _FOLD)


def _read_timedelta(data: bytes) -> timedelta:
    days, seconds, microseconds = _SPAN.unpack(data)
    return timedelta(days - _SPAN_DAYS, seconds, microseconds)


_COLLECTIONS: dict[int, Callable[[list[Any]], Any]] = {TUPLE: tuple, SET: set, FROZENSET: frozenset}

_READERS: dict[int, Callable[[bytes], Any]] = {
    BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
    DATETIME: _read_datetime,
    DATE: lambda data: date.fromordinal(_ORDINAL.unpack(data)[0]),
    TIMEDELTA: _read_timedelta,
    DECIMAL: lambda data: Decimal(data.decode("ascii")),
    UUID_: lambda data: UUID(bytes=data),
}


# ---------------------------------------------------------------- what went wrong, and what to do


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _no_such_type(value: Any) -> str:
    return (
        f"serde 'msgpack': cannot hold a {_name(value)} so that it comes back the same; {_advice(value)}, "
        f"or give the store or topic another serde: {_serde_of(type(value))}one of your own (a subclass of "
        "penstock.Serde), or 'pickle' where nobody else can write"
    )


def _serde_of(kind: type) -> str:
    """Return the serde of a type with fields, for a list of serdes."""
    marks = ("__dataclass_fields__", "_fields", "model_fields", "__struct_fields__")
    has_fields = any(hasattr(kind, each) for each in marks) or issubclass(kind, Enum)
    return f"of({kind.__name__}) of penstock.serdes, " if has_fields else ""


def _advice(value: Any) -> str:
    """Return how to turn `value` into something that can be written."""
    if is_dataclass(value):
        return "convert it (dataclasses.asdict(value))"
    if isinstance(value, Enum):
        return "keep its value (value.value)"
    if isinstance(value, tuple):
        return "convert it (tuple(value), or value._asdict() of a NamedTuple)"
    if type(value).__module__.partition(".")[0] in ("numpy", "pandas"):
        for method in ("to_pydatetime", "to_pytimedelta", "tolist", "item"):
            if hasattr(value, method):
                return f"convert it (value.{method}())"
    for kind in (str, bool, int, float, bytes, list, dict, set, frozenset, datetime, date, timedelta, Decimal, UUID):
        if isinstance(value, kind):
            return f"convert it to {kind.__name__}, of which it is a subclass"
    return "convert it to plain data (dict, list, tuple, str, numbers, datetime, Decimal, UUID)"


def _unwritable(value: Any, error: Exception) -> SerdeError:
    return SerdeError(
        f"serde 'msgpack': cannot write a {_name(value)}: {type(error).__name__}: {error} "
        "(does it contain itself, or nest hundreds deep?)"
    )


def _unreadable(data: bytes, error: Exception) -> SerdeError:
    return SerdeError(
        f"serde 'msgpack': cannot read {len(data)} bytes {bytes(data[:40])!r}: {type(error).__name__}: {error}; "
        "name the serde they were written with"
    )
