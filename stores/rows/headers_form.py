"""HeadersForm: values with a timestamp and headers, as the user's objects and in envelopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock import BytesStore, StoreError, ValueTimestampHeaders
from penstock.store.envelope import unwrap, wrap, wrap_stamped

from .value_form import TimestampedForm


class HeadersForm(TimestampedForm):
    """Values that are `ValueTimestampHeaders`.

    One that was put by a program that kept less has a timestamp of -1, and no headers.
    """

    def compile_test(self) -> Callable[[Any], bool]:
        free_types, fits = self.free_types, self.fits

        def can_wait(value: Any) -> bool:
            if type(value) is not ValueTimestampHeaders:
                return False
            content, timestamp, headers = value
            return (
                (type(content) in free_types or fits(content))
                and type(timestamp) is int
                and 0 <= timestamp < 2**63
                and (headers == () or _are_headers(headers))
            )

        return can_wait

    def fit(self) -> None:
        return None

    def reading(self, below: BytesStore, key_bytes: Callable[[Any], bytes], most: int) -> None:
        return None

    def checked(self, value: Any) -> Any:
        if type(value) is not ValueTimestampHeaders:
            raise StoreError(
                f"store {self._store!r} keeps headers: expected ValueTimestampHeaders(value, timestamp, headers), "
                f"found {type(value).__name__} {str(value)[:40]!r}"
            )
        self._check_timestamp(value[1])
        if not _are_headers(value[2]):
            raise StoreError(
                f"store {self._store!r}: expected headers as a tuple of (name, bytes or None) pairs, as those of a "
                f"record, and no name that begins with {_OWN!r}; found {str(value[2])[:60]!r}"
            )
        return None if value[0] is None else value

    def encode(self, value: Any) -> bytes:
        return _wrapped(self._serialize(value[0]), value)

    def encode_all(self, entries: Mapping[Any, Any], key_bytes: Callable[[Any], bytes]) -> dict[bytes, bytes | None]:
        serialize = self._serde.serializer()
        return {
            key_bytes(key): None if value is None else _wrapped(serialize(value[0]), value)
            for key, value in entries.items()
        }

    def _decode(self, data: bytes) -> Any:
        envelope = unwrap(data)
        timestamp = -1 if envelope.timestamp is None else envelope.timestamp
        return ValueTimestampHeaders(self._deserialize(envelope.value), timestamp, envelope.headers)


def _wrapped(content: bytes, value: Any) -> bytes:
    return wrap(content, value[1], value[2]) if value[2] else wrap_stamped(content, value[1])


def _are_headers(headers: Any) -> bool:
    """Return whether these headers can be cached: whether all their parts are of immutable types."""
    return type(headers) is tuple and all(
        type(header) is tuple and len(header) == 2 and _is_name(header[0]) and type(header[1]) in _CONTENT_TYPES
        for header in headers
    )


_OWN = "__penstock."
"""How the names of headers begin in which an entry's own properties are in a changelog topic."""
_CONTENT_TYPES = frozenset({bytes, type(None)})


def _is_name(name: Any) -> bool:
    if type(name) is not str:
        return False
    if name.startswith(_OWN):
        return False
    return name.isascii() or not any("\ud800" <= each <= "\udfff" for each in name)
