"""Serdes by name: those of core, and those that need a library; may import core."""

from __future__ import annotations

from penstock import Components, hookimpl


@hookimpl
def penstock_serdes() -> Components:
    """Return the serdes that come with penstock."""
    return {
        "bytes": "penstock.serde:BytesSerde",
        "str": "penstock.serde:StrSerde",
        "int": "penstock.serde:IntSerde",
        "int32": "penstock.serde:Int32Serde",
        "int16": "penstock.serde:Int16Serde",
        "float": "penstock.serde:FloatSerde",
        "float32": "penstock.serde:Float32Serde",
        "bool": "penstock.serde:BoolSerde",
        "uuid": "penstock.plugins.serdes.uuid:UuidSerde",
        "void": "penstock.plugins.serdes.void:VoidSerde",
        "list": "penstock.plugins.serdes.list:list_serde",
        "json": "penstock.plugins.serdes.json:JsonSerde",
        "msgpack": "penstock.plugins.serdes.msgpack:MsgpackSerde",
        "avro": "penstock.plugins.serdes.registry.by_name:avro",
        "json_schema": "penstock.plugins.serdes.registry.by_name:json_schema",
        "protobuf": "penstock.plugins.serdes.registry.by_name:protobuf",
        "pickle": "penstock.plugins.serdes.pickle:PickleSerde",
        "windowed": "penstock.plugins.dsl.graph.serdes:windowed",
        "session": "penstock.plugins.dsl.graph.serdes:session",
    }
