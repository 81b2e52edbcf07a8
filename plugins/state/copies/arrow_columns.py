"""Stores as columns of Arrow, typed by their serdes: for Parquet files and DataFrames."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock import Application, ConfigError, Serde, StoreBuilder, StoreError, StoreSpec
from penstock.plugins.serdes.json_text import dump_json
from penstock.plugins.serdes.typed.base import TypedSerde
from penstock.plugins.serdes.uuid import UuidSerde
from penstock.program.serdes import make_serde, resolve_serde
from penstock.store.specs import declared_serdes
from penstock.support.packages import check_installed

if TYPE_CHECKING:
    import pyarrow

_TYPES = {
    "str": "string",
    "bytes": "binary",
    "int": "int64",
    "int32": "int32",
    "int16": "int16",
    "float": "float64",
    "float32": "float32",
    "bool": "bool_",
    "uuid": "string",
}
"""The names of the Arrow types of serdes, by their names; `arrow_type` has those of classes with fields."""
_TIMES = {
    "key_value": (),
    "list": (),
    "lru_map": (),
    "window": ("start", "end"),
    "session": ("start", "end"),
    "versioned": ("timestamp", "valid_to"),
}
"""The columns of times (ms) that each kind of store has beside its key."""


class ArrowColumns:
    """The entries of one store as columns of Arrow: their `schema`, and `batch`.

    `task`, `version`, `key`, times in ms (int64) as the kind has them, `value`, and `timestamp` and `headers` where
    values have them; timers: `task`, `version`, `key`, `clock`, `at`. Raises ConfigError for a kind without columns,
    MissingPackageError without pyarrow.
    """

    def __init__(self, application: Application, store: StoreBuilder) -> None:
        check_installed("a store's columns", None, "pyarrow", "numpy")
        import pyarrow

        kind = store.kind if isinstance(store, StoreSpec) else "key_value"
        types: dict[str, Any] = {"task": _labels(), "version": _labels()}
        serdes = {
            name.removesuffix("_serde"): resolve_serde(
                given, application.settings.state_serde, f"store {store.name!r}", application.settings.of_plugins
            )
            for name, given in declared_serdes(store).items()
        }
        if kind == "timers":
            types |= {"key": _type_of(serdes["key"]), "clock": pyarrow.string(), "at": pyarrow.int64()}
        elif kind in _TIMES and {"key", "value"} <= serdes.keys():
            types["key"] = _type_of(serdes["key"])
            types |= dict.fromkeys(_TIMES[kind], pyarrow.int64())
            types["value"] = _type_of(serdes["value"])
            if store.traits.timestamped:
                types["timestamp"] = pyarrow.int64()
            if getattr(store, "headers", False):
                pair = [("name", pyarrow.string()), ("value", pyarrow.binary())]
                types["headers"] = pyarrow.list_(pyarrow.struct(pair))
        else:
            raise ConfigError(f"store {store.name!r} is of a kind ({kind!r}) that has no columns: export JSON lines")
        self._store = store.name
        self.schema: pyarrow.Schema = pyarrow.schema(list(types.items()))
        self._converters = {name: _converter_of(serde) for name, serde in serdes.items()}

    def batch(self, columns: Mapping[str, Sequence[Any]], task: str, version: str) -> pyarrow.RecordBatch:
        """Return a batch of entries of one task."""
        import pyarrow

        count = len(columns["key"])
        made = [_repeated(task, count), _repeated(version, count)]
        for field in list(self.schema)[2:]:
            values = columns[field.name]
            if (convert := self._converters.get(field.name)) is not None:
                values = [convert(each) for each in values]
            elif field.name == "headers":
                values = [[{"name": name, "value": value} for name, value in each] for each in values]
            made.append(self._array(values, field))
        return pyarrow.RecordBatch.from_arrays(made, schema=self.schema)

    def _array(self, values: Sequence[Any], field: pyarrow.Field) -> Any:
        import pyarrow

        try:
            return pyarrow.array(values, field.type)
        except (pyarrow.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise StoreError(
                f"store {self._store!r}: a {field.name} does not fit its column of type {field.type} ({error}): export "
                "JSON lines"
            ) from error


def is_json_text(serde: Serde[Any]) -> bool:
    """Return whether values of a serde are JSON text in columns."""
    return type(serde) not in _types() and not is_struct(serde)


def is_struct(serde: Serde[Any]) -> bool:
    """Return whether values of a serde are objects of a class, whose fields columns have."""
    return isinstance(serde, TypedSerde) and arrow_type(serde.json_schema()) is not None


def has_parts(serde: Serde[Any]) -> bool:
    """Return whether columns have the parts of values of a serde: fields of objects, or entries of lists."""
    import pyarrow

    found = arrow_type(serde.json_schema()) if isinstance(serde, TypedSerde) else None
    return found is not None and pyarrow.types.is_nested(found)


@cache
def _types() -> Mapping[type[Serde[Any]], str]:
    return {type(make_serde(name, "columns")): arrow for name, arrow in _TYPES.items()}


def _labels() -> Any:
    import pyarrow

    return pyarrow.dictionary(pyarrow.int32(), pyarrow.string())


def _repeated(text: str, count: int) -> Any:
    import numpy
    import pyarrow

    return pyarrow.DictionaryArray.from_arrays(numpy.zeros(count, numpy.int32), [text])


def _type_of(serde: Serde[Any]) -> Any:
    import pyarrow

    found = arrow_type(serde.json_schema()) if isinstance(serde, TypedSerde) else None
    return getattr(pyarrow, _types().get(type(serde), "string"))() if found is None else found


def _converter_of(serde: Serde[Any]) -> Callable[[Any], Any] | None:
    """Return the converter of a value to Arrow's form; None if none is needed."""
    if type(serde) is UuidSerde:
        return str
    if isinstance(serde, TypedSerde) and is_struct(serde):
        schema = serde.json_schema()
        return lambda value: _with_defaults(json.loads(serde.serialize(value)), schema, schema.get("$defs", {}))
    return (lambda value: dump_json(serde.to_json(value)).decode()) if is_json_text(serde) else None


Schema = Mapping[str, Any]

_SIMPLE = {"string": "string", "integer": "int64", "number": "float64", "boolean": "bool_"}


def arrow_type(schema: Schema) -> pyarrow.DataType | None:
    """Return the type of Arrow for the values of a JSON schema: objects with fields, lists and simple values.

    None for objects with other fields, values of several types, recursive types, and fields that may be absent or null.
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
    if kind == "object" and schema.get("properties") and not schema.get("additionalProperties"):
        if any(map(_may_be_none, _without_default(schema))):
            return None
        fields = [(name, _type(each, named, above)) for name, each in schema["properties"].items()]
        return None if any(of is None for _, of in fields) else pyarrow.struct(fields)
    return None


def _without_default(schema: Schema) -> Iterator[Schema]:
    """Yield the fields that may be absent and have no default."""
    for name, field in schema["properties"].items():
        if name not in schema.get("required", ()) and "default" not in field:
            yield field


def _with_defaults(value: Any, schema: Any, named: Schema) -> Any:
    """Return a value as JSON has it, with the fields that are absent because they have their defaults."""
    schema, _ = _resolved(schema, named, ())
    if isinstance(value, list):
        return [_with_defaults(each, schema["items"], named) for each in value]
    if isinstance(value, dict):
        fields = schema["properties"]
        defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
        # Others are those of computed fields, which are no part of the value.
        return defaults | {name: _with_defaults(value[name], fields[name], named) for name in value if name in fields}
    return value


def without_absent(value: Any, schema: Schema) -> Any:
    """Return a value as a column has it, without the fields that were absent: those of None that may not be None."""
    return _present(value, schema, schema.get("$defs", {}))


def _present(value: Any, schema: Any, named: Schema) -> Any:
    schema, _ = _resolved(schema, named, ())
    if isinstance(value, list):
        return [_present(each, schema.get("items"), named) for each in value]
    if isinstance(value, dict):
        fields = schema.get("properties", {})  # the type that was exported may have had others
        return {
            name: _present(each, fields.get(name), named)
            for name, each in value.items()
            if each is not None or name not in fields or _may_be_none(fields[name])
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
