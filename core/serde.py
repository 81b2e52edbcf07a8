"""Serdes convert keys and values to bytes and back. The interface, and the serdes without a library."""

from __future__ import annotations

import re
import reprlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import is_dataclass
from hashlib import sha256
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar, cast

from .compiled import records as compiled
from .errors import SerdeError
from .support.text_form import from_json, to_json

T = TypeVar("T")


class Serde(ABC, Generic[T]):
    """Turns values of one kind into bytes and back.

    The engine never hands over None: a missing key, a missing value and a tombstone stay None. Both methods raise
    SerdeError for values that they cannot convert; any other exception is treated the same. A serde is used by one
    thread at a time and must survive pickling.

    `immutable_types`: exact types that `serialize` accepts without fail, whose values cannot be changed, and which come
    back equal and of the same type. A store may hold such values as objects until the next commit and serialize them
    then. Leave it empty when in doubt. `checked_types`: the same, but `serialize` may refuse some values of them (an
    int too large). A store serializes such a value at once, and may hold it as an object for reading. `window_bytes`:
    number of bytes at the end that say the window of a key; the default partitioner leaves them out. `value_type`: type
    of all values, as `of` takes it. Keys are compared as bytes, by stores, partitions and groups: what is to be one key
    must be written alike; keys with other bytes are two, even if Python calls them equal (1 and True). Ranges follow
    the order of those bytes.

    To write one, subclass it. Pass an instance wherever a serde may be named; the hook `penstock_serdes` names it:

    >>> class Celsius(Serde[float]):
    ...     def serialize(self, value):
    ...         return f"{value:.2f}C".encode()
    ...     def deserialize(self, data):
    ...         if not data.endswith(b"C"):
    ...             raise SerdeError(f"expected a temperature such as b'21.50C', found {data[:40]!r}")
    ...         return float(data[:-1])
    >>> Celsius().deserialize(Celsius().serialize(21.5))
    21.5

    `penstock.testing.contracts` holds the tests that any serde must pass.
    """

    immutable_types: frozenset[type] = frozenset()
    checked_types: frozenset[type] = frozenset()
    window_bytes: int = 0
    value_type: Any = None
    saved_name: ClassVar[str]
    """Set it in a class whose `written_form` must stay when the class is moved or renamed; not inherited."""

    @abstractmethod
    def serialize(self, value: T) -> bytes:
        """Return `value` as bytes."""

    @abstractmethod
    def deserialize(self, data: bytes) -> T:
        """Return the value whose bytes `data` are."""

    def serializer(self) -> Callable[[T], bytes]:
        """Return a function that does what `serialize` does, faster if there is one (a function written in C).

        It may raise anything for what it cannot convert: the engine then calls `serialize` for the result or the error.
        """
        return self.serialize

    def deserialize_column(self, column: Sequence[bytes | None]) -> list[T | None]:
        """Return a list with the result of `deserialize` for each element of `column`, None for None.

        Override it where that is faster. It may raise anything: the engine then calls `deserialize` for each. A list of
        another length is an error that stops the task.
        """
        deserialize = self.deserialize
        return [None if data is None else deserialize(data) for data in column]

    def configure(self, config: Mapping[str, Any]) -> Serde[T]:
        """Return the serde to use in an application; `config` has its settings that plugins bring, by name.

        Read them with `Setting.of`. Called before `bind` and `prepare`. Raises nothing: a setting may still be missing.
        """
        return self

    def bind(self, topic: str, *, is_key: bool) -> Serde[T]:
        """Return the serde to use for keys or values of one topic; registries look schemas up here."""
        return self

    def for_values(self) -> Serde[T]:
        """Return the serde to use for the values of a store, whose bytes nothing compares."""
        return self

    def prepare(self, *, writes: bool) -> None:
        """Check at a start what the serde needs from outside, and whether its schema fits what is there.

        Called once in the process that starts the application, and by the test driver, for topics (bound) and stores.
        `writes`: it also writes. Raises SerdeError if the schema does not fit, SerdeUnavailableError if nothing
        answers.
        """

    def check_keys(self) -> None:
        """Check at a start that a later start gives equal keys the same bytes; called for the keys of each store.

        Raises SerdeError, with what to do, for a serde whose bytes depend on what may change meanwhile.
        """

    def written_form(self) -> str:
        """Return a name for the bytes that this serde writes; only a serde of the same name may read saved ones.

        The default is the class's `saved_name`, else its full name, and a check sum of the attributes that are plain
        data, if there are any. Override it if an attribute does not change the bytes (such as a password), or if
        something else does.

        >>> StrSerde().written_form()
        'penstock.serde.StrSerde'
        """
        plain = {name: value for name, value in getattr(self, "__dict__", {}).items() if _is_plain(value)}
        kind = type(self)
        # A subclass may write other bytes, so it does not have the name of its base.
        name = vars(kind).get("saved_name", f"{kind.__module__}.{kind.__qualname__}")
        return f"{name}({sha256(_plain_text(plain).encode()).hexdigest()[:8]})" if plain else name

    def unreadable(self, form: str) -> str:
        """Return why this serde cannot read data in the written form `form`; "" if it can.

        A start of a changed program calls this for each store. Override it in a serde that reads older forms of its
        own. The text follows "the store was written with value_serde", and names the old form and what to change.

        >>> IntSerde().unreadable(IntSerde().written_form()), IntSerde().unreadable("acme.Serde")
        ('', 'acme.Serde and now has penstock.serde.IntSerde')
        """
        now = self.written_form()
        return "" if form == now else f"{form} and now has {now}"

    def unfindable(self, form: str) -> str:
        """Return why keys have other bytes now than in the written form `form`; "" if they have the same.

        Rows are found by the bytes of their keys. A start calls this for the serdes of keys, where `unreadable` returns
        "". Override it in a serde that also writes keys in older forms of its own.

        >>> IntSerde().unfindable(IntSerde().written_form())
        ''
        """
        now = self.written_form()
        return "" if form == now else f"{form} and now has {now}, whose keys have other bytes"

    def to_json(self, value: T) -> Any:
        """Return `value` as JSON data: its text form, in which tools and queries show, export and take values.

        Override both methods for values of a class of your own. Raises SerdeError for a value that has no text form.

        >>> BytesSerde().to_json(b"x"), BytesSerde().from_json({"!bytes": "eA=="})
        ({'!bytes': 'eA=='}, b'x')
        """
        return to_json(value)

    def from_json(self, data: Any) -> T:
        """Return the value whose text form is `data`. Raises SerdeError for data that is not of this serde."""
        return self.deserialize(self.serialize(from_json(data)))

    def key_from_json(self, data: Any) -> T:
        """Return the key whose text form is `data`, as `from_json`, but refuse fields that the key does not have.

        Without them it would be another key. Raises SerdeError. Override it where `from_json` leaves out fields.
        """
        return self.from_json(data)


class BytesSerde(Serde[bytes]):
    """Bytes as they are.

    >>> BytesSerde().deserialize(b"abc")
    b'abc'
    """

    saved_name = "penstock.serde.BytesSerde"
    immutable_types = frozenset({bytes})

    def serialize(self, value: bytes) -> bytes:
        """Return `value`; a bytearray or memoryview is copied."""
        if type(value) is bytes:
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise _wrong("bytes", "bytes", value)

    def deserialize(self, data: bytes) -> bytes:
        return data

    def from_json(self, data: Any) -> bytes:
        """Return the bytes. Text without the tag is base64, too."""
        return super().from_json({"!bytes": data} if isinstance(data, str) else data)

    def serializer(self) -> Callable[[bytes], bytes]:
        return bytes.__bytes__

    def deserialize_column(self, column: Sequence[bytes | None]) -> list[bytes | None]:
        return list(column)


class StrSerde(Serde[str]):
    r"""Text as UTF-8, as Kafka's StringSerializer writes it.

    >>> StrSerde().serialize("ä")
    b'\xc3\xa4'
    """

    saved_name = "penstock.serde.StrSerde"
    checked_types = frozenset({str})

    def serialize(self, value: str) -> bytes:
        """Return `value` in UTF-8. Raises SerdeError for lone surrogates, which UTF-8 does not have."""
        try:
            return str.encode(value)
        except (TypeError, UnicodeEncodeError) as error:
            raise _wrong("str", "text that UTF-8 can hold" if isinstance(value, str) else "str", value) from error

    def serializer(self) -> Callable[[str], bytes]:
        return str.encode

    def deserialize_column(self, column: Sequence[bytes | None]) -> list[str | None]:
        if compiled is not None:
            return cast("list[str | None]", compiled.texts(column))
        try:
            return [data.decode() for data in column]  # type: ignore[union-attr]
        except AttributeError:
            return [None if data is None else data.decode() for data in column]

    def deserialize(self, data: bytes) -> str:
        """Return the text. Raises SerdeError for bytes that are not UTF-8."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise SerdeError(
                f"serde 'str': {data[:40]!r} is not UTF-8 ({error.reason}); name the serde it was written with"
            ) from error


class _StructSerde(Serde[T]):
    """Fixed-width big-endian numbers."""

    name: str
    layout: struct.Struct
    types: tuple[type, ...]
    wider = "the serde 'msgpack' holds integers of any size"

    def serialize(self, value: Any) -> bytes:
        """Return `value`, big-endian. Raises SerdeError for another type, or what does not fit."""
        if not isinstance(value, self.types) or (isinstance(value, bool) and bool not in self.types):
            raise _wrong(self.name, self.types[0].__name__, value)
        try:
            return self.layout.pack(value)
        except (struct.error, OverflowError) as error:
            raise SerdeError(
                f"serde {self.name!r}: {reprlib.repr(value)} does not fit {self.layout.size} bytes; {self.wider}"
            ) from error

    def serializer(self) -> Callable[[Any], bytes]:
        """Return a function that packs values of exactly the serde's type, without further checks."""
        kind, pack, serialize = self.types[0], self.layout.pack, self.serialize
        return lambda value: pack(value) if type(value) is kind else serialize(value)

    def deserialize(self, data: bytes) -> T:
        """Return the number. Raises SerdeError for another number of bytes."""
        try:
            number: T = self.layout.unpack(data)[0]
            return number
        except struct.error as error:
            raise self._unreadable(data) from error

    def _unreadable(self, data: bytes) -> SerdeError:
        size = self.layout.size
        return SerdeError(
            f"serde {self.name!r}: expected {size} byte{'s' * (size > 1)} that it wrote, found {len(data)}: "
            f"{data[:40]!r}; name the serde they were written with"
        )


class IntSerde(_StructSerde[int]):
    r"""Integers of 64 bits, as Kafka's LongSerializer writes them.

    >>> IntSerde().serialize(258)
    b'\x00\x00\x00\x00\x00\x00\x01\x02'
    """

    saved_name = "penstock.serde.IntSerde"
    name, layout, types = "int", struct.Struct(">q"), (int,)
    checked_types = frozenset({int})

    def serializer(self) -> Callable[[Any], bytes]:
        pack = super().serializer()
        return pack if compiled is None else cast(Callable[[Any], bytes], compiled.int64(pack))


class Int32Serde(_StructSerde[int]):
    r"""Integers of 32 bits, as Kafka's IntegerSerializer writes them.

    >>> Int32Serde().serialize(258)
    b'\x00\x00\x01\x02'
    """

    saved_name = "penstock.serde.Int32Serde"
    name, layout, types = "int32", struct.Struct(">i"), (int,)
    checked_types = frozenset({int})
    wider = "the serde 'int' has 8"


class Int16Serde(_StructSerde[int]):
    r"""Integers of 16 bits, as Kafka's ShortSerializer writes them.

    >>> Int16Serde().serialize(258)
    b'\x01\x02'
    """

    saved_name = "penstock.serde.Int16Serde"
    name, layout, types = "int16", struct.Struct(">h"), (int,)
    checked_types = frozenset({int})
    wider = "the serde 'int32' has 4, and 'int' has 8"


class FloatSerde(_StructSerde[float]):
    """Floats of 64 bits, as Kafka's DoubleSerializer writes them. An int is written as the float nearest to it.

    >>> FloatSerde().deserialize(FloatSerde().serialize(0.5))
    0.5
    """

    saved_name = "penstock.serde.FloatSerde"
    name, layout, types = "float", struct.Struct(">d"), (float, int)
    immutable_types = frozenset({float})


class Float32Serde(_StructSerde[float]):
    """Floats of 32 bits, as Kafka's FloatSerializer writes them. Another number is written as the nearest of them.

    >>> Float32Serde().deserialize(Float32Serde().serialize(0.1))
    0.10000000149011612
    """

    # No `immutable_types`: most Python floats come back rounded, so a store must not return the float that was put.
    saved_name = "penstock.serde.Float32Serde"
    name, layout, types = "float32", struct.Struct(">f"), (float, int)
    wider = "the serde 'float' has 8"


class BoolSerde(_StructSerde[bool]):
    r"""Booleans as one byte, 0 or 1, as Kafka's BooleanSerializer writes them.

    >>> BoolSerde().serialize(True)
    b'\x01'
    """

    saved_name = "penstock.serde.BoolSerde"
    name, layout, types = "bool", struct.Struct(">?"), (bool,)
    immutable_types = frozenset({bool})

    def deserialize(self, data: bytes) -> bool:
        """Return the truth value. Raises SerdeError for any byte but 0 and 1."""
        if data == b"\x01":
            return True
        if data == b"\x00":
            return False
        raise self._unreadable(data)


def __getattr__(name: str) -> Any:
    """Keep the documented import path of `WrappingSerde`."""
    if name == "WrappingSerde":
        return import_module("..wrapping_serde", __name__).WrappingSerde  # it derives from a class of this module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_FITTING = {str: "str", bytes: "bytes", int: "int", float: "float", bool: "bool", dict: "json", list: "json"}


def _wrong(serde: str, expected: str, value: object) -> SerdeError:
    kind = type(value)
    fits = f"of({kind.__name__})" if is_dataclass(value) else repr(_FITTING.get(kind, ""))
    hint = "" if fits in ("''", repr(serde)) else f", such as {fits}"
    return SerdeError(
        f"serde {serde!r}: expected {expected}, found {kind.__name__} {reprlib.repr(value)}; "
        f"name a serde that fits{hint} (`penstock plugins` lists them)"
    )


class WrappingSerde(Serde[T]):
    """A serde that is made of others, its attributes: calls of `bind`, `prepare` and the like go to them as well.

    Override `written_form` where an attribute that is no serde changes the bytes.

    >>> from penstock.serde import StrSerde
    >>> class Listed(WrappingSerde[list[str]]):
    ...     def __init__(self, each):
    ...         self.each = each
    ...     def serialize(self, value):
    ...         return b",".join(map(self.each.serialize, value))
    ...     def deserialize(self, data):
    ...         return list(map(self.each.deserialize, data.split(b",")))
    >>> Listed(StrSerde()).written_form()
    'Listed(penstock.serde.StrSerde)'
    """

    def configure(self, config: Mapping[str, Any]) -> Serde[T]:
        """Return a copy with the serdes for an application inside."""
        return self._with(lambda inner: inner.configure(config))

    def bind(self, topic: str, *, is_key: bool) -> Serde[T]:
        """Return a copy with the serdes for one topic inside."""
        return self._with(lambda inner: inner.bind(topic, is_key=is_key))

    def for_values(self) -> Serde[T]:
        """Return a copy with the serdes for values inside."""
        return self._with(lambda inner: inner.for_values())

    def _with(self, change: Callable[[Serde[Any]], Serde[Any]]) -> Serde[T]:
        made = copy(self)
        for name, inner in self._inner():
            setattr(made, name, change(inner))
        return made

    def written_form(self) -> str:
        """Return the name of the class, with the written forms of the serdes inside."""
        name = vars(type(self)).get("saved_name", type(self).__name__)
        return f"{name}({', '.join(inner.written_form() for _, inner in self._inner())})"

    def prepare(self, *, writes: bool) -> None:
        """Prepare the serdes inside."""
        for _, inner in self._inner():
            inner.prepare(writes=writes)

    def check_keys(self) -> None:
        """Check the serdes inside."""
        for _, inner in self._inner():
            inner.check_keys()

    def unreadable(self, form: str) -> str:
        """Return why an inner serde cannot read its part; see `Serde.unreadable`."""
        found = self._of_parts(form, lambda inner, part: inner.unreadable(part))
        return super().unreadable(form) if found is None else found

    def unfindable(self, form: str) -> str:
        """Return why an inner serde writes its part otherwise; see `Serde.unfindable`."""
        found = self._of_parts(form, lambda inner, part: inner.unfindable(part))
        return super().unfindable(form) if found is None else found

    def _of_parts(self, form: str, ask: Callable[[Serde[Any], str], str]) -> str | None:
        """Return the inner serdes' answers for their parts of `form`; None for the form of another serde."""
        now = self.written_form()
        if form == now:
            return ""
        name, parts = _parts_of_form(form)
        inner = [each for _, each in self._inner()]
        if name != _parts_of_form(now)[0] or len(parts) != len(inner) or len(_parts_of_form(now)[1]) != len(inner):
            return None
        return "; ".join(filter(None, map(ask, inner, parts)))

    def _inner(self) -> Iterator[tuple[str, Serde[Any]]]:
        return ((name, each) for name, each in vars(self).items() if isinstance(each, Serde))


# ---------------------------------------------------------------- written forms: plain attributes, and serdes of serdes


def _parts_of_form(form: str) -> tuple[str, list[str]]:
    """Return the name and the parts of "Name(part, part)"; parts may have brackets, and text in quotes, as JSON has.

    >>> _parts_of_form('Pair(of({"a":[1, 2]}), Listed(x, y))')
    ('Pair', ['of({"a":[1, 2]})', 'Listed(x, y)'])
    """
    name, _, rest = form.partition("(")
    parts, depth, quoted, start = [], 0, False, 0
    for match in re.finditer(r'\\.|["()\[\]{}]|, ', rest):
        token = match.group()
        if token == '"':
            quoted = not quoted
        elif quoted or token.startswith("\\"):
            continue
        elif token == ", ":
            if depth == 0:
                parts.append(rest[start : match.start()])
                start = match.end()
        else:
            depth += 1 if token in "([{" else -1
    return name, [*parts, rest[start:-1]] if rest else []


def _is_plain(value: object) -> bool:
    """Return whether a value is plain data: text, bytes, numbers, None, and collections of them."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, (str, bytes, int, float, bool))


def _plain_text(value: object) -> str:
    """Return a text that is the same for equal plain data in every process: sets and dicts are sorted."""
    if isinstance(value, dict):
        return repr(sorted((_plain_text(key), _plain_text(each)) for key, each in value.items()))
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(_plain_text, value)))
    if isinstance(value, (list, tuple)):
        return repr(list(map(_plain_text, value)))
    return repr(value)
