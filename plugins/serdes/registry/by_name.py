"""The serdes of a registry by their names; their libraries are imported when one is made."""

from __future__ import annotations

from typing import Any

from penstock import Serde


def avro(argument: str) -> Serde[Any]:
    """Return the serde named "avro:FILE.avsc" or "avro:SUBJECT", or "avro:" for the subject that the topic has.

    The registry is that of the application's setting `schema_registry`, or of the environment.
    """
    from .avro import AvroSerde

    if argument.endswith(".avsc"):
        return AvroSerde(argument)
    return AvroSerde(subject=argument or None)


def json_schema(argument: str) -> Serde[Any]:
    """Return the serde named "json_schema:FILE.json" or "json_schema:SUBJECT", or "json_schema:" as for Avro."""
    from .json_schema import JsonSchemaSerde

    if argument.endswith(".json"):
        return JsonSchemaSerde(argument)
    return JsonSchemaSerde(subject=argument or None)
