"""StampedStore: a key-value store whose values have timestamps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import StoreError
from penstock.store import ValueAndTimestamp
from penstock.store_kinds.key_value import TimestampedKeyValueStore

from .envelope import unwrap, wrap_stamped
from .plain import INT64_MAX, INT64_MIN, PlainStore


class StampedStore(PlainStore, TimestampedKeyValueStore[Any]):
    """A TimestampedKeyValueStore: values are ValueAndTimestamp."""

    def _compile_put(self) -> Callable[[Any, Any], None]:
        pending, clean, slow = self._pending, self._clean, self._put
        key_types, free_types, fits = self._key_types, self._free_types, self._fits

        def put(key: Any, value: Any) -> None:
            if type(value) is ValueAndTimestamp and type(key) in key_types and (key in pending or key in clean):
                content, timestamp = value
                if (
                    (type(content) in free_types or fits(content))
                    and type(timestamp) is int
                    and 0 <= timestamp <= INT64_MAX
                ):
                    pending[key] = value
                    return
            slow(key, value)

        return put

    def _encoded(self, pending: Mapping[Any, Any]) -> dict[bytes, bytes | None]:
        key_bytes, encode = self._key_serde.serialize, self._encode
        return {key_bytes(key): None if value is None else encode(value) for key, value in pending.items()}

    def _encode(self, value: Any) -> bytes:
        return wrap_stamped(self._serialize_value(value[0]), value[1])

    def _decode(self, data: bytes) -> Any:
        envelope = unwrap(data)
        timestamp = -1 if envelope.timestamp is None else envelope.timestamp
        return ValueAndTimestamp(self._deserialize_value(envelope.value), timestamp)

    def _check(self, key: Any, value: Any) -> Any:
        if type(value) is not ValueAndTimestamp:
            raise StoreError(
                f"store {self.name!r} is timestamped: expected ValueAndTimestamp(value, timestamp), "
                f"found {type(value).__name__} {str(value)[:40]!r}"
            )
        if type(value[1]) is not int or not INT64_MIN <= value[1] <= INT64_MAX:
            raise StoreError(f"store {self.name!r}: expected a timestamp in milliseconds (64 bits), found {value[1]!r}")
        return None if value[0] is None else value

    def _content(self, value: Any) -> Any:
        return value[0]
