"""Protobuf messages as protoc makes them, of a file that is declared here: shop.Line, shop.Order and shop.Changed."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto


def _field(name: str, number: int, kind: int, *, repeated: bool = False, of: str = "") -> Any:
    label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
    return FIELD(name=name, number=number, type=kind, label=label, type_name=of or None)


def declared(name: str, *fields: Any) -> Any:
    return descriptor_pb2.DescriptorProto(name=name, field=fields)


def made(package: str, *messages: Any) -> dict[str, Any]:
    """Return the classes of a file with these messages, by name."""
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package=package, syntax="proto3", message_type=messages
    )
    pool.Add(file)
    found = {}
    for each in messages:
        kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{each.name}"))
        kind.__module__ = __name__
        found[each.name] = kind
    return found


_line = declared("Line", _field("sku", 1, FIELD.TYPE_STRING), _field("cents", 2, FIELD.TYPE_INT64))
_user, _lines = (
    _field("user", 1, FIELD.TYPE_STRING),
    _field("lines", 2, FIELD.TYPE_MESSAGE, repeated=True, of=".shop.Line"),
)
_classes = made("shop", _line, declared("Order", _user, _lines))
Line, Order = _classes["Line"], _classes["Order"]

Wider = made("shop", _line, declared("Order", _user, _lines, _field("note", 3, FIELD.TYPE_STRING)))["Order"]
Changed = made(
    "shop",
    declared("Line", _field("sku", 1, FIELD.TYPE_STRING), _field("cents", 2, FIELD.TYPE_DOUBLE)),
    declared("Order", _lines),
)["Order"]
