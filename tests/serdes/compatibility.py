"""Whether a registry takes a schema: the part of Confluent's rules for BACKWARD that the tests need, of each format."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse
from google.protobuf import descriptor_pb2


def differences(kind: str, now: str, before: str) -> list[str]:
    """Return why values of the schema `before` cannot all be read by `now`; both are texts of the format `kind`."""
    return list({"AVRO": _avro, "JSON": _json, "PROTOBUF": _protobuf}[kind](now, before))


def _avro(now: str, before: str) -> Iterator[str]:
    found = ReaderWriterCompatibilityChecker().get_compatibility(parse(now), parse(before))
    if found.compatibility != SchemaCompatibilityType.compatible:
        yield from found.messages


def _json(now: str, before: str) -> Iterator[str]:
    new, old = json.loads(now), json.loads(before)

    def compare(path: str, one: Any, other: Any) -> Iterator[str]:
        one, other = _resolved(one, new), _resolved(other, old)
        kind, was = one.get("type"), other.get("type")
        if kind != was and (was, kind) != ("integer", "number"):
            yield f"{path}: TYPE_CHANGED"
            return
        if "properties" not in one or "properties" not in other:
            return
        has, had = one["properties"], other["properties"]
        is_open = other.get("additionalProperties", True) is True
        for name, each in has.items():
            if name in had:
                yield from compare(f"{path}/properties/{name}", each, had[name])
            elif is_open:
                yield f"{path}/properties/{name}: PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"
            elif name in one.get("required", ()) and "default" not in each:
                yield f"{path}/properties/{name}: REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"
        for name in had:
            if name not in has and one.get("additionalProperties", True) is False:
                yield f"{path}/properties/{name}: PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"
        for name in one.get("required", ()):
            if name in had and name not in other.get("required", ()) and "default" not in has[name]:
                yield f"{path}/required/{name}: REQUIRED_ATTRIBUTE_ADDED"

    return compare("#", new, old)


def _resolved(schema: Any, whole: Any) -> Any:
    while "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def _protobuf(now: str, before: str) -> Iterator[str]:
    has, had = ({each.name: each for each in _file(text).message_type} for text in (now, before))
    for name, old in had.items():
        if name not in has:
            yield f"#/{name}: MESSAGE_REMOVED"
            continue
        fields = {each.number: each for each in has[name].field}
        for field in old.field:
            new = fields.get(field.number)
            if new is not None and (new.type, new.type_name) != (field.type, field.type_name):
                yield f"#/{name}/{field.number}: FIELD_KIND_CHANGED"


def _file(text: str) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text))
