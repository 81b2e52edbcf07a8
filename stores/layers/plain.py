"""PlainStore: keys and values of the user's types over a BytesStore, with recently used entries kept as objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from penstock.errors import PenstockError, SerdeError, StoreError
from penstock.serde import IntSerde, Serde, StrSerde
from penstock.store import BytesStore, Entries
from penstock.store_kinds.key_value import KeyValueStore

from .envelope import PLAIN, value_of
from .ttl import TtlStore

_MISSING: Any = object()

CACHED_ENTRIES = 131_072
"""How many entries a store keeps as objects at most; some 30 MB of small ones."""
_LONGEST_CACHED = 256
"""Longer texts and bytes (as keys in bytes, as values) are not kept as objects."""
_KEY_TYPES = frozenset({str, bytes, int})
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class PlainStore(KeyValueStore[Any, Any]):
    """A KeyValueStore: serdes, the value's envelope, and a cache of entries as objects.

    The cache is two dicts, with None for a key that has no value: `_pending` has entries that were put and are not
    serialized yet, `_clean` has entries as they are in the BytesStore below; `_pending` takes precedence. A key in
    neither takes the slow path, so a TypeError in the fast path can only come from a key that cannot be hashed.

    Only values that callers cannot change are cached: small ones of the serde's `immutable_types` and `checked_types`.
    Keys are cached when they are exactly a str, bytes or int that the key serde returns unchanged, and were serialized
    once: so no two cached keys have the same bytes, and 1, 1.0 and True never meet in a dict. A key of any other type
    is serialized and deserialized first; if that gives a cached type, it is the same key.
    """

    def __init__(self, below: BytesStore, key_serde: Serde[Any], value_serde: Serde[Any]) -> None:
        self.name = below.name
        self._below = below
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._serialize_value = value_serde.serialize
        self._deserialize_value = value_serde.deserialize
        self._pending: dict[Any, Any] = {}
        self._clean: dict[Any, Any] = {}
        caches = not isinstance(below, TtlStore)  # a cached entry would never expire
        sized = frozenset({str, bytes})
        faithful = value_serde.immutable_types | value_serde.checked_types
        self._key_types = _KEY_TYPES & (key_serde.immutable_types | key_serde.checked_types) if caches else frozenset()
        self._free_types = value_serde.immutable_types - sized
        """Values of these types are cached without a check."""
        self._late_types = value_serde.immutable_types
        """Values of these types may be serialized later."""
        self._plain_types = faithful - sized
        self._sized_types = faithful & sized
        self._fits = self._compile_fits()
        # The two hot methods are closures: no look-up in self, and no type check where no other type can be equal.
        setattr(self, "get", self._compile_get())  # noqa: B010
        setattr(self, "put", self._compile_put())  # noqa: B010

    # ------------------------------------------------------------------ single entries

    def get(self, key: Any) -> Any:
        """Return the value of `key`, or None."""
        return self._get(key)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`; None deletes it."""
        self._put(key, value)

    def _compile_fits(self) -> Callable[[Any], bool]:
        """Return a function that checks whether a value may be cached and serialized later."""
        late = self._sized_types & self._late_types
        # What core's own serdes accept can be checked without calling them.
        numbers, texts = type(self._value_serde) is IntSerde, type(self._value_serde) is StrSerde

        def fits(value: Any) -> bool:
            kind = type(value)
            if kind in late or (texts and kind is str and value.isascii()):
                return len(value) <= _LONGEST_CACHED
            return numbers and kind is int and INT64_MIN <= value <= INT64_MAX

        return fits

    def _compile_get(self) -> Callable[[Any], Any]:
        pending, clean, slow, key_types = self._pending.get, self._clean.get, self._get, self._key_types
        if int in key_types:

            def get(key: Any) -> Any:
                if type(key) in key_types:
                    value = pending(key, _MISSING)
                    if value is _MISSING:
                        value = clean(key, _MISSING)
                        if value is _MISSING:
                            return slow(key)
                    return value
                return slow(key)

            return get

        def get_text(key: Any) -> Any:
            # Only a str equals a str, and only bytes equal bytes: the type need not be checked.
            try:
                value = pending(key, _MISSING)
                if value is _MISSING:
                    value = clean(key, _MISSING)
                    if value is _MISSING:
                        return slow(key)
                return value
            except TypeError:  # unhashable; the slow path raises the right error
                return slow(key)

        return get_text

    def _compile_put(self) -> Callable[[Any, Any], None]:
        pending, clean, slow = self._pending, self._clean, self._put
        key_types, free_types, fits = self._key_types, self._free_types, self._fits
        if int in key_types:

            def put(key: Any, value: Any) -> None:
                if (
                    (type(value) in free_types or fits(value))
                    and type(key) in key_types
                    and (key in pending or key in clean)
                ):
                    pending[key] = value
                else:
                    slow(key, value)

            return put

        def put_text(key: Any, value: Any) -> None:
            try:
                if (type(value) in free_types or fits(value)) and (key in pending or key in clean):
                    pending[key] = value
                    return
            except TypeError:  # unhashable; the slow path raises the right error
                pass
            slow(key, value)

        return put_text

    def put_if_absent(self, key: Any, value: Any) -> Any:
        """Set the value of `key` unless it has one; return the one it had."""
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Set the values of several keys."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: Any) -> Any:
        """Delete `key`; return the value it had."""
        old = self.get(key)
        if old is not None:
            self.put(key, None)
        return old

    # ------------------------------------------------------------------ scans

    def range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        """Iterate over start <= key <= end in the order of the serialized keys."""
        return self._scan(start, end, reverse=False)

    def reverse_range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        """Iterate as `range` does, from the highest key down."""
        return self._scan(start, end, reverse=True)

    def prefix_scan(self, prefix: Any, serde: Serde[Any] | None = None) -> Entries[Any, Any]:
        """Iterate over keys whose bytes start with `prefix`, serialized with `serde` (default: the key's)."""
        self.flush_cache()
        low = self._key_bytes(prefix, serde)
        return _Entries(self._decoded(self._below.range(low, after_prefix(low))))

    def approximate_count(self) -> int:
        """Return about how many keys there are."""
        self.flush_cache()
        return self._below.approximate_count()

    # ------------------------------------------------------------------ the commit

    def flush(self) -> None:
        """Serialize the cache into the BytesStore below."""
        self.flush_cache()
        if isinstance(self._below, TtlStore):
            self._below.delete_expired()

    def flush_cache(self) -> None:
        """Serialize entries that were put since the last flush; they stay cached for reading."""
        pending, clean = self._pending, self._clean
        if pending:
            self._below.put_all(self._encoded(pending))
            clean.update(pending)
            pending.clear()
            excess = len(clean) - CACHED_ENTRIES
            if excess > 0:
                for old in list(islice(clean, excess + CACHED_ENTRIES // 2)):  # the oldest
                    del clean[old]

    def _encoded(self, pending: Mapping[Any, Any]) -> dict[bytes, bytes | None]:
        """Return entries as bytes."""
        key_bytes, value_bytes = self._key_serde.serializer(), self._value_serde.serializer()
        try:
            return {
                key_bytes(key): None if value is None else PLAIN + value_bytes(value) for key, value in pending.items()
            }
        except Exception:  # the fast functions may refuse what `serialize` takes
            key_bytes, encode = self._key_serde.serialize, self._encode
            return {key_bytes(key): None if value is None else encode(value) for key, value in pending.items()}

    def discard(self) -> None:
        """Empty the cache."""
        self._pending.clear()
        self._clean.clear()

    def close(self) -> None:
        """Empty the cache."""
        self.discard()

    # ------------------------------------------------------------------ values: a timestamped store overrides these

    def _encode(self, value: Any) -> bytes:
        """Return the envelope of `value`."""
        return PLAIN + self._serialize_value(value)

    def _decode(self, data: bytes) -> Any:
        """Return the value in an envelope."""
        return self._deserialize_value(value_of(data))

    def _check(self, key: Any, value: Any) -> Any:
        """Return `value`, or None where it means a deletion. Raises StoreError for a wrong type of value."""
        return value

    def _content(self, value: Any) -> Any:
        """Return the user's own part of `value`."""
        return value

    # ------------------------------------------------------------------ off the hot path

    def _get(self, key: Any) -> Any:
        if type(key) in self._key_types:
            value = self._clean.get(key, _MISSING)
            if value is not _MISSING and key not in self._pending:
                return value
        raw, key = self._locate(key)
        if key is not _MISSING:
            value = self._pending.get(key, _MISSING)
            if value is _MISSING:
                value = self._clean.get(key, _MISSING)
            if value is not _MISSING:
                return value
        data = self._below.get(raw)
        if data is None:
            value = None
        else:
            try:
                value = self._decode(data)
            except Exception as error:
                raise self._wrong("the value of", raw, "read", error) from error
        if key is not _MISSING and (value is None or self._is_small(self._content(value))):
            self._cache(key, value)
        return value

    def _put(self, key: Any, value: Any) -> None:
        if type(key) in self._key_types and (key in self._clean or key in self._pending):
            raw = None  # a cached key was serialized before, so the serde accepts it
        else:
            raw, key = self._locate(key)
        if value is not None:
            value = self._check(key, value)
        cacheable = key is not _MISSING and (value is None or self._is_small(self._content(value)))
        if cacheable and (
            value is None or type(content := self._content(value)) in self._late_types or self._fits(content)
        ):
            if len(self._pending) >= CACHED_ENTRIES and key not in self._pending:
                self.flush_cache()
            self._pending[key] = value
            return
        if raw is None:
            raw = self._key_bytes(key)
        if value is None:
            data = None
        else:
            try:
                data = self._encode(value)
            except Exception as error:
                raise self._wrong("the value of", raw, "write", error) from error
        self._below.put(raw, data)
        if key is not _MISSING:
            self._pending.pop(key, None)
            if cacheable:
                self._cache(key, value)
            else:
                self._clean.pop(key, None)

    def _cache(self, key: Any, value: Any) -> None:
        clean = self._clean
        if len(clean) >= CACHED_ENTRIES and key not in clean:
            for old in list(islice(clean, CACHED_ENTRIES // 2)):  # the older half
                del clean[old]
        clean[key] = value

    def _is_small(self, content: Any) -> bool:
        kind = type(content)
        return kind in self._plain_types or (kind in self._sized_types and len(content) <= _LONGEST_CACHED)

    def _locate(self, key: Any) -> tuple[bytes, Any]:
        """Return the bytes of `key`, and the key under which its entry may be cached (_MISSING: not at all)."""
        raw = self._key_bytes(key)
        if not self._key_types or len(raw) > _LONGEST_CACHED:
            return raw, _MISSING
        if type(key) not in self._key_types:
            key = self._key_object(raw)
            if type(key) not in self._key_types:
                key = _MISSING
        return raw, key

    def _key_bytes(self, key: Any, serde: Serde[Any] | None = None) -> bytes:
        if key is None:
            raise StoreError(f"store {self.name!r}: a key of None; drop records without a key, or give them one")
        try:
            return (serde or self._key_serde).serialize(key)
        except Exception as error:
            raise self._wrong("the key", key, "write", error) from error

    def _key_object(self, raw: bytes) -> Any:
        try:
            return self._key_serde.deserialize(raw)
        except Exception as error:
            raise self._wrong("the key", raw, "read", error) from error

    def _scan(self, start: Any, end: Any, *, reverse: bool) -> Entries[Any, Any]:
        self.flush_cache()
        low = None if start is None else self._key_bytes(start)
        high = None if end is None else self._key_bytes(end) + b"\x00"
        return _Entries(self._decoded(self._below.range(low, high, reverse=reverse)))

    def _decoded(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[Any, Any]]:
        for raw, data in entries:
            key = self._key_object(raw)
            try:
                value = self._decode(data)
            except Exception as error:
                raise self._wrong("the value of", raw, "read", error) from error
            yield key, value

    def _wrong(self, what: str, which: object, verb: str, error: Exception) -> PenstockError:
        kind = type(error) if isinstance(error, PenstockError) else SerdeError
        cause = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        return kind(f"store {self.name!r}: cannot {verb} {what} {str(which)[:60]!r}: {cause}")


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the least bytes above all that start with `prefix`; None when there are none.

    >>> after_prefix(b"ab"), after_prefix(b"a" + bytes([255])), after_prefix(b"")
    (b'ac', b'b', None)
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


class _Entries:
    """An iterator that a `with` block or `close()` ends early; at its end it closes itself."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterator[tuple[Any, Any]]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self

    def __next__(self) -> tuple[Any, Any]:
        return next(self._entries)

    def __enter__(self) -> Iterator[tuple[Any, Any]]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration and release its resources."""
        self._entries = iter(())
