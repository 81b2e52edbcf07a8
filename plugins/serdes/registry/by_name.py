"""The serdes of a registry by their names; their libraries are imported when one is made."""

from __future__ import annotations

from typing import Any

from penstock.serde import Serde


def avro(argument: str) -> Serde[Any]:
    """Return the serde named "avro:FILE.avsc" or "avro:SUBJECT", or "avro:" for the subject that the topic has.

    The registry is that of the environment, SCHEMA_REGISTRY_URL.
    """
    from .avro import AvroSerde

    if argument.endswith(".avsc"):
        return AvroSerde(argument)
    return AvroSerde(subject=argument or None)
