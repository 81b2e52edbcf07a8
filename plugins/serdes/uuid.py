"""The `uuid` serde: UUIDs as text."""

from __future__ import annotations

import reprlib
from uuid import UUID

from penstock import Serde, SerdeError


class UuidSerde(Serde[UUID]):
    """UUIDs as their 36 characters in lower case, as Kafka's UUIDSerializer writes them.

    >>> UuidSerde().serialize(UUID(int=1))
    b'00000000-0000-0000-0000-000000000001'

    The order of the bytes is that of `UUID.int`.
    """

    saved_name = "penstock.plugins.serdes.uuid.UuidSerde"
    immutable_types = frozenset({UUID})

    def serialize(self, value: UUID) -> bytes:
        """Return the text of `value`. The text of a UUID, as JSON has it, will do as well.

        Raises SerdeError for anything else.
        """
        if isinstance(value, UUID):
            return str(value).encode()
        found = _uuid(value) if isinstance(value, str) else None
        if found is None:
            raise SerdeError(
                f"serde 'uuid': expected uuid.UUID, found {type(value).__name__} {reprlib.repr(value)}; "
                "name a serde that fits (`penstock plugins` lists them)"
            )
        return str(found).encode()

    def deserialize(self, data: bytes) -> UUID:
        """Return the UUID; letters may be upper case. Raises SerdeError for any other text."""
        found = _uuid(data.decode("latin-1"))
        if found is None:
            raise SerdeError(
                f"serde 'uuid': expected the 36 characters of a UUID, found {len(data)} bytes: {data[:40]!r}; "
                "name the serde they were written with"
            )
        return found


def _uuid(text: str) -> UUID | None:
    """Return the UUID of `text` with hyphens in their four places; Python's own reader takes them anywhere."""
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found if str(found) == text.lower() else None
