"""RecordUnions: unions with several records in Avro schemas, whose records have names in Python."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from penstock.support.packages import needed

from .avro_schemas import CHECKED, NAMED, NO_INT, RECORDS, kind_of, parts_of

with needed("serde 'avro'", "avro"):
    from fastavro.read import LOGICAL_READERS

_NAMING = "naming"
_PYTHON: Mapping[str, type | tuple[type, ...]] = {
    "null": type(None), "boolean": bool, "int": Integral, "long": Integral, "float": Real, "double": Real,
    "bytes": (bytes, Decimal), "fixed": (bytes, Decimal), "string": str, "enum": str, "array": (list, tuple),
    "map": Mapping, "record": tuple, "error": tuple,
}  # fmt: skip
"""The types of Python that may be of each type; of a record, beside dicts, a pair of its name and it."""
_OfRecord = Callable[[Mapping[str, Any], list[str], Any], Any]
"""Takes the records of a union, the names of those that fit, and a record."""


class RecordUnions:
    """The unions with several records in a parsed schema: values there are pairs, of the record's full name and it.

    fastavro reads such a record without its name, and writes it as the first one that it fits, which may be another.
    """

    def __init__(self, parsed: Any) -> None:
        self.parsed = parsed
        parts = list(parts_of(parsed, set()))
        self._named = {part["name"]: part for part in parts if isinstance(part, dict) and kind_of(part) in NAMED}
        self.are_there = any(isinstance(part, list) and len(self._records(part)) > 1 for part in parts)

    def checked(self, value: Any, _: object) -> Any:
        """Return the value. Raises TypeError for a record without a name that may be one of several."""
        if self.are_there:
            self._walk(self.parsed, value, self._check)
        return value

    def named(self, value: Any) -> Any:
        """Return a value that `naming` has read, with the names of records in these unions only."""
        return self._walk(self.parsed, value, self._keep_name)

    def naming(self) -> Any:
        """Return the schema, changed in place: each record is read as a pair of its name (the reader's) and it."""
        for part in parts_of(self.parsed, set()):
            if isinstance(part, dict) and kind_of(part) in RECORDS:
                part["logicalType"] = _NAMING
        return self.parsed

    def _records(self, union: list[Any]) -> dict[str, Any]:
        found = [self._resolved(each) for each in union]
        return {each["name"]: each for each in found if kind_of(each) in RECORDS}

    def _resolved(self, schema: Any) -> Any:
        schema = self._named.get(schema, schema) if isinstance(schema, str) else schema
        while isinstance(schema, dict) and isinstance(schema["type"], (dict, list)):
            schema = schema["type"]
        return schema

    def _walk(self, schema: Any, value: Any, of_record: _OfRecord) -> Any:
        schema = self._resolved(schema)
        kind = kind_of(schema)
        if kind == "union":
            records = self._records(schema)
            if isinstance(value, tuple) and len(value) == 2 and value[0] in records:
                return of_record(records, [value[0]], value[1])
            fitting = [name for name, each in records.items() if self._fits(each, value)]
            if isinstance(value, Mapping) and fitting:
                return of_record(records, fitting, value)
            kinds = ("map",) if isinstance(value, Mapping) else ("array",) if isinstance(value, list) else ()
            branch = next((each for each in map(self._resolved, schema) if kind_of(each) in kinds), None)
            return value if branch is None else self._walk(branch, value, of_record)
        if kind in RECORDS:
            value = value[1] if isinstance(value, tuple) and len(value) == 2 else value
            return self._fields(schema, value, of_record) if isinstance(value, Mapping) else value
        if kind == "array" and isinstance(value, list):
            return [self._walk(schema["items"], each, of_record) for each in value]
        if kind == "map" and isinstance(value, Mapping):
            return {name: self._walk(schema["values"], each, of_record) for name, each in value.items()}
        return value

    def _fits(self, schema: Any, value: Any) -> bool:
        """Return whether a value may be of a type, by its own type; a record by its fields."""
        schema = self._resolved(schema)
        kind = kind_of(schema)
        if kind == "union":
            return any(self._fits(each, value) for each in schema)
        if kind in RECORDS and isinstance(value, Mapping):
            types = {field["name"]: field["type"] for field in schema["fields"]}
            needed_fields = {field["name"] for field in schema["fields"] if "default" not in field}
            fits = needed_fields <= value.keys() <= types.keys()
            return fits and all(self._fits(types[name], each) for name, each in value.items())
        if isinstance(schema, dict) and schema.get(CHECKED, schema.get("logicalType")) not in (
            None,
            NO_INT,
            CHECKED,
        ):
            return True
        if kind == "enum":
            return isinstance(value, str) and value in schema["symbols"]
        if kind == "fixed":
            return isinstance(value, bytes) and len(value) == schema["size"]
        return isinstance(value, _PYTHON[kind]) and (kind == "boolean" or not isinstance(value, bool))

    def _fields(self, schema: Any, value: Any, of_record: _OfRecord) -> Any:
        types = {field["name"]: field["type"] for field in schema["fields"]}
        return {
            name: self._walk(types[name], each, of_record) if name in types else each for name, each in value.items()
        }

    def _check(self, records: Mapping[str, Any], names: list[str], value: Any) -> None:
        if len(names) > 1:
            raise TypeError(
                f"{reprlib.repr(value)} may be a {' or a '.join(names)}: give a pair of the name and the record, "
                f"({names[0]!r}, {{...}}), as such a record is read"
            )
        self._fields(records[names[0]], value, self._check)

    def _keep_name(self, records: Mapping[str, Any], names: list[str], value: Any) -> Any:
        # Only a default has no name: it is of the first branch.
        found = self._fields(records[names[0]], value, self._keep_name)
        return (names[0], found) if len(records) > 1 else found


def _with_name(value: Any, writer: Any, reader: Any) -> Any:
    """Return a record with its name in the reader's schema."""
    return (reader["name"] if isinstance(reader, dict) else reader or writer["name"]), value


for _record in RECORDS:
    LOGICAL_READERS[f"{_record}-{_NAMING}"] = _with_name
