"""CheckedSerde: wraps a serde of another package, so that SerdeError is raised when it writes anything but bytes."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import TypeVar

from ..errors import SerdeError
from ..serde import Serde

T = TypeVar("T")


def checked(serde: Serde[T]) -> Serde[T]:
    """Return `serde`; one of another package raises SerdeError where it writes something other than bytes."""
    return serde if type(serde).__module__.partition(".")[0] == "penstock" else _CheckedSerde(serde)


class _CheckedSerde(Serde[T]):
    """A serde, and a SerdeError where that writes something other than bytes."""

    def __init__(self, serde: Serde[T]) -> None:
        self._serde = serde
        self.immutable_types = serde.immutable_types
        self.checked_types = serde.checked_types
        # Only what is written is checked: reading costs no call more.
        self.deserialize = serde.deserialize  # type: ignore[method-assign]
        self.deserialize_column = serde.deserialize_column  # type: ignore[method-assign]
        self.serialize = self._bytes_of(serde.serialize)  # type: ignore[method-assign, assignment]

    def serialize(self, value: T) -> bytes:
        raise NotImplementedError

    def deserialize(self, data: bytes) -> T:
        raise NotImplementedError

    def serializer(self) -> Callable[[T], bytes]:
        """Return the serde's own fast function, with the same look at what it returns."""
        return self._bytes_of(self._serde.serializer())

    def bind(self, topic: str, *, is_key: bool) -> Serde[T]:
        return checked(self._serde.bind(topic, is_key=is_key))

    def written_form(self) -> str:
        return self._serde.written_form()

    def unreadable(self, form: str) -> str:
        return self._serde.unreadable(form)

    def _bytes_of(self, write: Callable[[T], bytes]) -> Callable[[T], bytes]:
        name = f"{type(self._serde).__module__}.{type(self._serde).__qualname__}"

        def write_bytes(value: T) -> bytes:
            data = write(value)
            if type(data) is bytes:
                return data
            if isinstance(data, (bytes, bytearray, memoryview)):
                return bytes(data)
            raise SerdeError(
                f"serde {name} is wrong: for {reprlib.repr(value)} it wrote {type(data).__name__} "
                f"{reprlib.repr(data)}, expected bytes"
            )

        return write_bytes
