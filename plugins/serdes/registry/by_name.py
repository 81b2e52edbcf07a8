"""The serdes of a registry by their names; their libraries are imported when one is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock import ConfigError, MissingPackageError, Serde


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


def protobuf(argument: str) -> Serde[Any]:
    """Return the serde named "protobuf:MODULE:CLASS", of the messages of a class that protoc has made.

    The registry is that of `avro`. Raises ConfigError for a class that is not there, or is none of messages.
    """
    from .protobuf import ProtobufSerde

    module, _, name = argument.partition(":")
    if not module or not name:
        raise ConfigError("expected protobuf:MODULE:CLASS, the class of the messages that protoc has made")
    try:
        return ProtobufSerde(getattr(import_module(module), name))
    except MissingPackageError:
        raise
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"class {name} of module {module} cannot be imported: {error}") from error
