"""Types of Arrow for values of classes with fields, by the JSON schema of their serde."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

Schema = Mapping[str, Any]

_SIMPLE = {"string": "string", "integer": "int64", "number": "float64", "boolean": "bool_"}


def arrow_type(schema: Schema) -> pyarrow.DataType | None:
    """Return the type of Arrow for the values of a JSON schema: objects with fields, lists and simple values.

    None for a schema that has others, such as objects with any keys, values of several types, or a type in itself.
    """
    return _type(schema, schema.get("$defs", {}), ())


def _type(schema: Any, named: Schema, above: tuple[str, ...]) -> pyarrow.DataType | None:
    import pyarrow

    schema, above = _resolved(schema, named, above)
    kind = schema.get("type")
    if "enum" in schema:
        return pyarrow.string() if all(isinstance(each, str) for each in schema["enum"]) else None
    if kind in _SIMPLE:
        return getattr(pyarrow, _SIMPLE[kind])()
    if kind == "array" and "items" in schema:
        of = _type(schema["items"], named, above)
        return None if of is None else pyarrow.list_(of)
    if kind == "object" and schema.get("properties") and not isinstance(schema.get("additionalProperties"), Mapping):
        fields = [(name, _type(each, named, above)) for name, each in schema["properties"].items()]
        return None if any(of is None for _, of in fields) else pyarrow.struct(fields)
    return None


def without_absent(value: Any, schema: Schema) -> Any:
    """Return a value as a column has it, without the fields that were absent: those of None that may not be None."""
    return _present(value, schema, schema.get("$defs", {}))


def _present(value: Any, schema: Any, named: Schema) -> Any:
    schema, _ = _resolved(schema, named, ())
    if isinstance(value, list):
        return [_present(each, schema["items"], named) for each in value]
    if isinstance(value, dict):
        fields = schema["properties"]
        return {
            name: _present(each, fields[name], named)
            for name, each in value.items()
            if each is not None or _may_be_none(fields[name])
        }
    return value


def _may_be_none(schema: Schema) -> bool:
    return any(each.get("type") == "null" for each in schema.get("anyOf", ()))


def _resolved(schema: Any, named: Schema, above: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
    """Return a schema without references and without "or null"; an empty one for a type in itself."""
    if not isinstance(schema, Mapping):
        return {}, above
    if (reference := schema.get("$ref")) is not None:
        name = reference.rpartition("/")[2]
        return ({}, above) if name in above else _resolved(named.get(name), named, (*above, name))
    choices = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return _resolved(choices[0], named, above) if len(choices) == 1 else (schema, above)
