"""KeyForm: a store's keys, as the user's objects and as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock import PenstockError, Serde, SerdeError, StoreError

MISSING: Any = object()
"""No key, or no entry, where None could be one."""

LONGEST_KEPT = 256
"""Maximum length of cached texts and bytes (keys in bytes, values likewise)."""

_KEY_TYPES = frozenset({str, bytes, int})


class KeyForm:
    """Serializes the keys of one store, and says under which key an entry may be kept as an object.

    Entries are kept under keys that are exactly a str, bytes or int that the serde returns unchanged, and that were
    serialized once: so no two such keys have the same bytes, and 1, 1.0 and True never meet in a dict. A key of any
    other type is serialized and deserialized first; if that gives one of `types`, it is the same key.
    """

    def __init__(self, store: str, serde: Serde[Any]) -> None:
        self._store = store
        self.serde = serde
        self.types = _KEY_TYPES & (serde.immutable_types | serde.checked_types)

    def locate(self, key: Any) -> tuple[bytes, Any]:
        """Return the bytes of `key`, and the cache's key for its entry (MISSING: it cannot be cached)."""
        raw = self.to_bytes(key)
        if not self.types or len(raw) > LONGEST_KEPT:
            return raw, MISSING
        if type(key) not in self.types:
            key = self.to_object(raw)
            if type(key) not in self.types:
                key = MISSING
        return raw, key

    def to_bytes(self, key: Any, serde: Serde[Any] | None = None) -> bytes:
        """Return `key` serialized, with `serde` if one is given. Raises StoreError or SerdeError, naming the store."""
        if key is None:
            raise StoreError(f"store {self._store!r}: a key of None; drop records without a key, or give them one")
        try:
            return (serde or self.serde).serialize(key)
        except Exception as error:
            raise wrong(self._store, "the key", key, "write", error) from error

    def serializer(self) -> Callable[[Any], bytes]:
        """Return a function that serializes keys faster than `to_bytes`; it may refuse keys that `to_bytes` takes."""
        return self.serde.serializer()

    def to_object(self, raw: bytes) -> Any:
        """Return the key whose bytes `raw` are. Raises SerdeError, naming the store."""
        try:
            return self.serde.deserialize(raw)
        except Exception as error:
            raise wrong(self._store, "the key", raw, "read", error) from error

    def to_objects(self, column: Sequence[bytes]) -> list[Any]:
        """Return the keys whose bytes `column` has; raises as `to_object`."""
        try:
            return self.serde.deserialize_column(column)
        except Exception:  # it may raise anything for what `deserialize` takes
            return [self.to_object(raw) for raw in column]


def wrong(store: str, what: str, which: object, verb: str, error: Exception) -> PenstockError:
    """Return the error to raise after `error`, which reading or writing a key or value of a store raised."""
    kind = type(error) if isinstance(error, PenstockError) else SerdeError
    cause = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    return kind(f"store {store!r}: cannot {verb} {what} {str(which)[:60]!r}: {cause}")
