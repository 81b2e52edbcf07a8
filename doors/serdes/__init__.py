"""What programs import for keys and values that are not named by a text: `of` for types of their own, and serdes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.support.packages import importable

if TYPE_CHECKING:
    from penstock.plugins.serdes.json import JsonSerde
    from penstock.plugins.serdes.list import ListSerde
    from penstock.plugins.serdes.msgpack import MsgpackSerde
    from penstock.plugins.serdes.of import of
    from penstock.plugins.serdes.pickle import PickleSerde
    from penstock.plugins.serdes.registry.avro import AvroSerde
    from penstock.plugins.serdes.registry.json_schema import JsonSchemaSerde
    from penstock.plugins.serdes.registry.protobuf import ProtobufSerde
    from penstock.plugins.serdes.uuid import UuidSerde
    from penstock.plugins.serdes.void import VoidSerde

    __all__ = [
        "AvroSerde",
        "JsonSchemaSerde",
        "JsonSerde",
        "ListSerde",
        "MsgpackSerde",
        "PickleSerde",
        "ProtobufSerde",
        "UuidSerde",
        "VoidSerde",
        "of",
    ]

_FROM = {
    "AvroSerde": "registry.avro",
    "JsonSchemaSerde": "registry.json_schema",
    "JsonSerde": "json",
    "ListSerde": "list",
    "MsgpackSerde": "msgpack",
    "PickleSerde": "pickle",
    "ProtobufSerde": "registry.protobuf",
    "UuidSerde": "uuid",
    "VoidSerde": "void",
    "of": "of",
}


def __getattr__(name: str) -> Any:
    """Import a serde when it is first used: some need a library that only programs with such values have."""
    if name == "__all__":
        return importable(__name__, _FROM)
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"penstock.plugins.serdes.{_FROM[name]}"), name)
