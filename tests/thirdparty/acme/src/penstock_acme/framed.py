"""The serde `acme.framed:INNER`, whose argument is the name of another serde."""

from typing import Any

from penstock import Serde, SerdeError, WrappingSerde
from penstock.errors import ConfigError
from penstock.program.serdes import resolve_serde


class FramedSerde(WrappingSerde[Any]):
    """What another serde writes, in brackets."""

    def __init__(self, inner: Serde[Any]) -> None:
        """Take the other serde."""
        self.inner = inner

    def serialize(self, value: Any) -> bytes:
        """Return the bytes of `value` in brackets."""
        return b"[" + self.inner.serialize(value) + b"]"

    def deserialize(self, data: bytes) -> Any:
        """Return the value in the brackets."""
        if len(data) < 2 or data[:1] + data[-1:] != b"[]":
            raise SerdeError(f"serde 'acme.framed': expected brackets, found {data!r}")
        return self.inner.deserialize(data[1:-1])


def framed(inner: str) -> FramedSerde:
    """Return the serde of that name."""
    if not inner:
        raise ConfigError("expected a serde after the colon")
    return FramedSerde(resolve_serde(inner, None, "what is framed"))
