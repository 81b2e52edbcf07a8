"""The `void` serde: keys or values that are always None."""

from __future__ import annotations

import reprlib
from typing import NoReturn

from penstock import Serde, SerdeError


class VoidSerde(Serde[None]):
    """None alone, as Kafka's VoidSerializer and VoidDeserializer.

    None has no bytes: records have a null there, and the engine writes and reads it without a serde. So this serde
    refuses all that it is given.

    >>> VoidSerde().deserialize_column([None, None])
    [None, None]
    """

    saved_name = "penstock.plugins.serdes.void.VoidSerde"

    def serialize(self, value: None) -> NoReturn:
        """Raise SerdeError."""
        raise SerdeError(
            f"serde 'void': expected a missing key or value, found {type(value).__name__} {reprlib.repr(value)}; "
            "None has no bytes, and for anything else name another serde"
        )

    def deserialize(self, data: bytes) -> NoReturn:
        """Raise SerdeError."""
        raise SerdeError(
            f"serde 'void': expected null, found {len(data)} bytes: {data[:40]!r}; "
            "name the serde they were written with"
        )
