"""ValueForm: a store's values, as the user's objects and in envelopes: plain, or with a timestamp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from penstock import BytesStore, IntSerde, Serde, StoreError, StrSerde, ValueAndTimestamp
from penstock.compiled import records as compiled
from penstock.store.envelope import PLAIN, STAMPED, pack_stamp, unwrap, value_of, wrap_stamped

from .key_form import LONGEST_KEPT, wrong

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


Fit = tuple[frozenset[type], int, frozenset[type], int, type | None]
"""Types whose values may wait without a check; what else may: short values of `types`, short ASCII text, or ints of 64
bits; these types, the longest of them, and ValueAndTimestamp where the value is in one."""
_SHORT, _ASCII, _INT64 = range(3)


class Encoded:
    """The envelope of a mutable value, which is not cached as an object."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class ValueForm:
    """Plain values. Stores of every kind use one of these forms, over keys of any form.

    A store may keep as objects only values that callers cannot change: small ones of the serde's `immutable_types` and
    `checked_types`. Those that the serde certainly accepts may also wait for the commit to be serialized.
    """

    def __init__(self, store: str, serde: Serde[Any]) -> None:
        serde = serde.for_values()
        sized = frozenset({str, bytes})
        faithful = serde.immutable_types | serde.checked_types
        self._store = store
        self._serde = serde
        self._serialize = serde.serialize
        self._deserialize = serde.deserialize
        self._late_sized_types = serde.immutable_types & sized
        self._plain_types = faithful - sized
        self._sized_types = faithful & sized
        self.free_types = serde.immutable_types - sized
        """Contents of these exact types may wait without a check."""
        self.fits = self._compile_fits()
        """Whether a content of another type may wait."""

    def _compile_fits(self) -> Callable[[Any], bool]:
        # What core's own serdes accept can be checked without calling them.
        if type(self._serde) is IntSerde:
            return lambda content: type(content) is int and INT64_MIN <= content <= INT64_MAX
        if type(self._serde) is StrSerde:
            return lambda content: type(content) is str and len(content) <= LONGEST_KEPT and content.isascii()
        late = self._late_sized_types
        return lambda content: type(content) in late and len(content) <= LONGEST_KEPT

    @property
    def free_values(self) -> frozenset[type]:
        """Values of these exact types may wait without a check."""
        return self.free_types

    def compile_test(self) -> Callable[[Any], bool]:
        """Return a function that says of any value, checked or not, whether it may wait for the commit as an object."""
        free_types, fits = self.free_types, self.fits
        return lambda value: type(value) in free_types or fits(value)

    def fit(self) -> Fit | None:
        """Return the arguments of `compile_test` for compiled code; None if compiled code cannot test values."""
        return self.free_types, self._mode(), self._late_sized_types, LONGEST_KEPT, None

    def reading(self, below: BytesStore, key_bytes: Callable[[Any], bytes], most: int) -> tuple[Any, ...] | None:
        """Return the form in which compiled code reads and caches up to `most` entries; None if it cannot."""
        kept = self._plain_types, self._sized_types, self._mode()
        return below, key_bytes, self._deserialize, *kept, None, LONGEST_KEPT, most

    def _mode(self) -> int:
        kind = type(self._serde)
        return _INT64 if kind is IntSerde else _ASCII if kind is StrSerde else _SHORT

    def can_wait(self, value: Any) -> bool:
        """Return whether a checked value may be cached, and be serialized at the commit."""
        content = self._content(value)
        return type(content) in self.free_types or self.fits(content)

    def can_keep(self, value: Any) -> bool:
        """Return whether a value may be cached for reading."""
        content = self._content(value)
        kind = type(content)
        return kind in self._plain_types or (kind in self._sized_types and len(content) <= LONGEST_KEPT)

    def checked(self, value: Any) -> Any:
        """Return `value`, or None if it means a deletion. Raises StoreError for a value that no store takes."""
        return value

    def to_bytes(self, key: object, value: Any) -> bytes:
        """Return the envelope of a checked value. Raises SerdeError, naming the store and `key`."""
        try:
            return self.encode(value)
        except Exception as error:
            raise wrong(self._store, "the value of", key, "write", error) from error

    def to_object(self, key: object, data: bytes) -> Any:
        """Return the value in an envelope. Raises SerdeError or StoreError, naming the store and `key`."""
        try:
            return self._decode(data)
        except Exception as error:
            raise wrong(self._store, "the value of", key, "read", error) from error

    def to_objects(self, keys: Sequence[bytes], column: Sequence[bytes]) -> list[Any]:
        """Return the values in a column of envelopes, faster than `to_object` where it can be; raises as that."""
        try:
            return self._decode_column(column)
        except Exception:
            return [self.to_object(key, data) for key, data in zip(keys, column, strict=True)]

    def _decode_column(self, column: Sequence[bytes]) -> list[Any]:
        return self._serde.deserialize_column([value_of(data) for data in column])

    def encode(self, value: Any) -> bytes:
        """Return the envelope of a checked value. Raises whatever the serde raises."""
        return PLAIN + self._serialize(value)

    def encode_all(self, entries: Mapping[Any, Any], key_bytes: Callable[[Any], bytes]) -> dict[bytes, bytes | None]:
        """Return entries as bytes, faster than `encode`; raises anything for values that only `encode` takes."""
        serialize = self._serde.serializer()
        if compiled is not None:
            return cast("dict[bytes, bytes | None]", compiled.encode(entries, key_bytes, serialize, False))
        return {key_bytes(key): None if value is None else PLAIN + serialize(value) for key, value in entries.items()}

    def serializer(self) -> Callable[[Any], bytes]:
        """Return a function that serializes contents faster than the serde's `serialize`; it may refuse some."""
        return self._serde.serializer()

    def _decode(self, data: bytes) -> Any:
        return self._deserialize(value_of(data))

    def _content(self, value: Any) -> Any:
        """Return the user's own part of `value`."""
        return value


class TimestampedForm(ValueForm):
    """Values that are `ValueAndTimestamp`. One that was put by a program without timestamps has -1."""

    @property
    def free_values(self) -> frozenset[type]:
        """None: the types in `free_types` are of contents."""
        return frozenset()

    def compile_test(self) -> Callable[[Any], bool]:
        free_types, fits = self.free_types, self.fits

        def can_wait(value: Any) -> bool:
            if type(value) is not ValueAndTimestamp:
                return False
            content, timestamp = value
            return (
                (type(content) in free_types or fits(content))
                and type(timestamp) is int
                and 0 <= timestamp <= INT64_MAX
            )

        return can_wait

    def fit(self) -> Fit | None:
        fit = super().fit()
        return None if fit is None else (*fit[:-1], ValueAndTimestamp)

    def reading(self, below: BytesStore, key_bytes: Callable[[Any], bytes], most: int) -> tuple[Any, ...] | None:
        plain = super().reading(below, key_bytes, most)
        return None if plain is None else (*plain[:-3], ValueAndTimestamp, *plain[-2:])

    def checked(self, value: Any) -> Any:
        if type(value) is not ValueAndTimestamp:
            raise StoreError(
                f"store {self._store!r} is timestamped: expected ValueAndTimestamp(value, timestamp), "
                f"found {type(value).__name__} {str(value)[:40]!r}"
            )
        self._check_timestamp(value[1])
        return None if value[0] is None else value

    def _check_timestamp(self, timestamp: object) -> None:
        if type(timestamp) is not int or not INT64_MIN <= timestamp <= INT64_MAX:
            raise StoreError(
                f"store {self._store!r}: expected a timestamp in milliseconds (64 bits), found {timestamp!r}"
            )

    def encode(self, value: Any) -> bytes:
        return wrap_stamped(self._serialize(value[0]), value[1])

    def encode_all(self, entries: Mapping[Any, Any], key_bytes: Callable[[Any], bytes]) -> dict[bytes, bytes | None]:
        serialize = self._serde.serializer()
        if compiled is not None:
            return cast("dict[bytes, bytes | None]", compiled.encode(entries, key_bytes, serialize, True))
        return {
            key_bytes(key): None if value is None else pack_stamp(STAMPED, value[1]) + serialize(value[0])
            for key, value in entries.items()
        }

    def _decode_column(self, column: Sequence[bytes]) -> list[Any]:
        return [self._decode(data) for data in column]

    def _decode(self, data: bytes) -> Any:
        envelope = unwrap(data)
        return ValueAndTimestamp(
            self._deserialize(envelope.value), -1 if envelope.timestamp is None else envelope.timestamp
        )

    def _content(self, value: Any) -> Any:
        return value[0]
