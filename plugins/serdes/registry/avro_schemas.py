"""Parsed Avro schemas as fastavro needs them: defaults as Python's values, and unions in which an int stays an int."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from penstock.support.packages import needed

with needed("serde 'avro'", "avro"):
    from fastavro.read import LOGICAL_READERS
    from fastavro.write import LOGICAL_WRITERS

_NO_INT = "no-int"
_FLOATS, _INTS, _BYTES = ("float", "double"), ("int", "long"), ("bytes", "fixed")
_NAMED = ("record", "error", "enum", "fixed")
Reader = Callable[[Any, Any, Any], Any]


def prepare_schema(parsed: Any) -> Any:
    """Change a schema that fastavro has parsed, in place, and return it: `keep_ints`, and defaults as Python's values.

    fastavro takes a default as the JSON has it: text for bytes, a number for a date.
    """
    parts = list(_parts(keep_ints(parsed), set()))
    named = {part["name"]: part for part in parts if isinstance(part, dict) and _kind(part) in _NAMED}
    for part in parts:
        for field in part.get("fields", ()) if isinstance(part, dict) else ():
            if "default" in field:
                field["default"] = _value(field["type"], field["default"], named)
    return parsed


def keep_ints(parsed: Any) -> Any:
    """Change a parsed schema in place, and return it: floating point branches of a union with integers take no int.

    fastavro writes an int by the first branch that takes one, and a double loses digits.
    """
    for part in list(_parts(parsed, set())):
        kinds = [_kind(branch) for branch in part] if isinstance(part, list) else []
        if any(kind in _INTS for kind in kinds):
            part[:] = [
                {"type": kind, "logicalType": _NO_INT} if kind in _FLOATS else branch
                for kind, branch in zip(kinds, part, strict=True)
            ]
    return parsed


def prepare_reader(parsed: Any) -> Any:
    """Change a schema that values of other schemas are read as, in place, and return it.

    fastavro reads a value as the first branch of a union that it can become. So integers come before floating point
    numbers: a long is not read as a double.
    """
    for part in list(_parts(prepare_schema(parsed), set())):
        if isinstance(part, list):
            part.sort(key=lambda branch: _kind(branch) in _FLOATS)
    return parsed


def _parts(schema: Any, seen: set[int]) -> Iterator[Any]:
    """Yield each type in a schema that is a dict or a list, once, also those that only a name refers to."""
    if id(schema) in seen or not isinstance(schema, (dict, list)):
        return
    seen.add(id(schema))
    yield schema
    if isinstance(schema, list):
        inner = schema
    else:
        inner = [schema.get("items"), schema.get("values"), *schema.get("__named_schemas", {}).values()]
        inner += [schema["type"]] if not isinstance(schema["type"], str) else []
        inner += [field["type"] for field in schema.get("fields", ())]
    for each in inner:
        yield from _parts(each, seen)


def _no_int(value: Any, schema: Any) -> Any:
    return None if isinstance(value, int) else value  # None fits no number


for _float in _FLOATS:
    LOGICAL_WRITERS[f"{_float}-{_NO_INT}"] = _no_int


def _kind(schema: Any) -> Any:
    if isinstance(schema, list):
        return "union"
    return schema["type"] if isinstance(schema, dict) else schema


def _value(schema: Any, default: Any, named: Mapping[str, Any]) -> Any:
    """Return the Python value of a default as the schema's JSON has it; one that is a value already is kept."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    kind = _kind(schema)
    if isinstance(kind, (dict, list)) and kind is not schema:
        return _value(kind, default, named)
    if kind == "union":
        return _value(next((each for each in schema if _fits(each, default, named)), "null"), default, named)
    if kind == "array":
        return [_value(schema["items"], each, named) for each in default]
    if kind == "map":
        return {name: _value(schema["values"], each, named) for name, each in default.items()}
    if kind in ("record", "error"):
        found = {field["name"]: field["default"] for field in schema["fields"] if "default" in field} | default
        return {field["name"]: _value(field["type"], found[field["name"]], named) for field in schema["fields"]}
    if kind in _BYTES and isinstance(default, str):
        default = default.encode("latin-1")
    elif kind in _FLOATS:
        default = float(default)
    elif not isinstance(default, (int, str)):
        return default
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    read = cast(Reader | None, LOGICAL_READERS.get(f"{kind}-{logical}"))
    return default if read is None or not isinstance(default, (int, str, bytes)) else read(default, schema, None)


def _fits(schema: Any, default: Any, named: Mapping[str, Any]) -> bool:
    """Return whether a default in JSON may be one of a branch of a union."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    kind = _kind(schema)
    if default is None or isinstance(default, bool):
        return bool(kind == ("null" if default is None else "boolean"))
    if isinstance(default, (int, float)):
        return kind in _FLOATS or (kind in _INTS and isinstance(default, int))
    if isinstance(default, str):
        return kind in ("string", *_BYTES) or (kind == "enum" and default in schema["symbols"])
    return kind == "array" if isinstance(default, list) else kind in ("map", "record", "error")
