"""The serde `acme.upper`."""

from penstock import Serde, SerdeError


class UpperSerde(Serde[str]):
    """Text in capitals."""

    def serialize(self, value: str) -> bytes:
        """Return `value` in UTF-8, in capitals."""
        if not isinstance(value, str):
            raise SerdeError(f"serde 'acme.upper': expected str, found {value!r}")
        return value.upper().encode()

    def deserialize(self, data: bytes) -> str:
        """Return the text."""
        return data.decode()
