"""Parsed Avro schemas as fastavro needs them: defaults as Python's values, and values of the declared types only."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from numbers import Integral, Real
from struct import Struct
from typing import Any, NoReturn, cast
from uuid import UUID

from penstock.support.packages import needed

with needed("serde 'avro'", "avro"):
    from fastavro.read import LOGICAL_READERS
    from fastavro.write import LOGICAL_WRITERS

NO_INT, CHECKED, _READ = "no-int", "checked", "read"
_BESIDE_TEXT, _BESIDE_PLAIN, _BESIDE_MICROS = "beside-text", "beside-plain", "beside-micros"
_FLOAT32 = Struct(">f")
_FLOATS, _INTS, _BYTES = ("float", "double"), ("int", "long"), ("bytes", "fixed")
_TEXTS = ("string", "bytes")
_MILLIS, _MICROS = "time-millis", "time-micros"
RECORDS = ("record", "error")
NAMED = (*RECORDS, "enum", "fixed")
Reader = Callable[[Any, Any, Any], Any]


def prepare_schema(parsed: Any) -> Any:
    """Change a schema that fastavro has parsed, in place, and return it: `keep_ints`, and defaults as Python's values.

    fastavro takes a default as the JSON has it: text for bytes, a number for a date.
    """
    parts = list(parts_of(keep_ints(parsed), set()))
    named = {part["name"]: part for part in parts if isinstance(part, dict) and kind_of(part) in NAMED}
    for part in parts:
        for field in part.get("fields", ()) if isinstance(part, dict) else ():
            if "default" in field:
                field["default"] = _value(field["type"], field["default"], named)
    return parsed


def keep_ints(parsed: Any) -> Any:
    """Change a parsed schema in place, and return it: floating point branches of a union with integers take no int.

    fastavro writes an int by the first branch that takes one, and a double loses digits.
    """
    for part in list(parts_of(parsed, set())):
        kinds = [kind_of(branch) for branch in part] if isinstance(part, list) else []
        if any(kind in _INTS for kind in kinds):
            part[:] = [
                {"type": kind, "logicalType": NO_INT} if kind in _FLOATS else branch
                for kind, branch in zip(kinds, part, strict=True)
            ]
    return parsed


def check_values(parsed: Any) -> Any:
    """Return a schema, changed in place, by which fastavro refuses values of other types than it declares.

    fastavro writes 1 for 1.5 where an int is declared, True for any text, infinity for a float that is too large, each
    letter of a text as an entry of an array, and a datetime without a time zone by the zone of this host. In a union it
    writes an int as a date or time, and bytes as a Decimal, although another branch has them as they are, an int as the
    first of several dates and times, and a time without its microseconds, although another branch has these.
    """
    parts = list(parts_of(parsed, set()))
    named = {part["name"]: part for part in parts if isinstance(part, dict) and kind_of(part) in NAMED}
    for part in parts:
        if isinstance(part, list):
            branches = [named.get(each, each) if isinstance(each, str) else each for each in part]
            has_text = any(kind_of(each) in ("string", "enum") for each in branches)
            plain = [kind_of(each) for each in branches if not isinstance(each, dict) or "logicalType" not in each]
            logical = {_logical_of(each) for each in branches if kind_of(each) in _INTS} - {None}
            beside = [kinds for kinds in (_INTS, _BYTES) if any(kind in kinds for kind in plain)]
            if len(logical) > 1:
                beside.append(_INTS)  # nothing says of which of them an int is
            part[:] = [
                _checked(
                    each,
                    beside_text=has_text,
                    beside_plain=any(kind_of(other) in kinds for kinds in beside),
                    beside_micros=_MICROS in logical,
                )
                for each, other in zip(part, branches, strict=True)
            ]
            continue
        for name in ("type", "items", "values"):
            if name in part and (name != "type" or not isinstance(part["type"], str)):
                part[name] = _checked(part[name])
        for field in part.get("fields", ()):
            field["type"] = _checked(field["type"])
            if kind_of(field["type"]) in _FLOATS and "default" in field:
                field["default"] = float(field["default"])  # fastavro takes no int where the type is a dict
        if part["type"] == "array":
            part["logicalType"] = CHECKED
    return _checked(parsed)


def _logical_of(schema: Any) -> Any:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _checked(schema: Any, *, beside_text: bool = False, beside_plain: bool = False, beside_micros: bool = False) -> Any:
    kind, logical = kind_of(schema), _logical_of(schema)
    if beside_plain and logical == "decimal":
        return {**schema, "logicalType": CHECKED, CHECKED: logical}
    if (
        logical == CHECKED
        or not isinstance(kind, str)
        or kind not in _TYPES
        or (kind == "string" and logical != "uuid")
    ):
        return schema
    own = schema if isinstance(schema, dict) else {"type": kind}
    beside = {_BESIDE_TEXT: beside_text, _BESIDE_PLAIN: beside_plain, _BESIDE_MICROS: beside_micros}
    return {**own, "logicalType": CHECKED, CHECKED: logical, **beside}


def prepare_reader(parsed: Any) -> Any:
    """Change a schema that values of other schemas are read as, in place, and return it.

    fastavro reads a value as the first branch of a union that it can become. So integers come before floating point
    numbers: a long is not read as a double.
    """
    for part in list(parts_of(prepare_schema(parsed), set())):
        if isinstance(part, list):
            part.sort(key=lambda branch: kind_of(branch) in _FLOATS)
            if {"string", "bytes"} <= set(map(kind_of, part)):
                part[:] = [{**_as_dict(each), _BESIDE_TEXT: True} if kind_of(each) in _TEXTS else each for each in part]
    return parsed


def reads_text_beside_bytes(prepared: Any) -> bool:
    """Return whether a schema that `prepare_reader` has changed has a union of text and bytes."""
    unions = [part for part in parts_of(prepared, set()) if isinstance(part, list)]
    return any({"string", "bytes"} <= set(map(kind_of, each)) for each in unions)


def read_texts_as_written(parsed: Any) -> Any:
    """Return a schema, changed in place, whose text and bytes are read as what they are by a union that has both.

    fastavro reads both as the first of the two. It leaves values of a logical type alone.
    """
    for part in list(parts_of(parsed, set())):
        if isinstance(part, list):
            part[:] = map(_as_written, part)
            continue
        for name in ("type", "items", "values"):
            if name in part and (name != "type" or not isinstance(part["type"], str)):
                part[name] = _as_written(part[name])
        for field in part.get("fields", ()):
            field["type"] = _as_written(field["type"])
    return _as_written(parsed)


def _as_written(schema: Any) -> Any:
    return {"logicalType": _READ, **_as_dict(schema)} if kind_of(schema) in _TEXTS else schema


def _as_dict(schema: Any) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {"type": schema}


def _read_as_written(value: str | bytes, _: object, reader: Any) -> Any:
    if reader is None or (isinstance(reader, dict) and _BESIDE_TEXT in reader):
        return value
    kind = kind_of(reader)
    if kind == "bytes" and isinstance(value, str):
        return value.encode()
    return value.decode() if kind == "string" and isinstance(value, bytes) else value


for _text in _TEXTS:
    LOGICAL_READERS[f"{_text}-{_READ}"] = _read_as_written


def parts_of(schema: Any, seen: set[int]) -> Iterator[Any]:
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
        yield from parts_of(each, seen)


def _no_int(value: Any, schema: Any) -> Any:
    return None if isinstance(value, int) else value  # None fits no number


for _float in _FLOATS:
    LOGICAL_WRITERS[f"{_float}-{NO_INT}"] = _no_int


class _Unfit:
    """Stands for a value of another type: no branch of a union takes it, and to write it raises TypeError."""

    def __init__(self, value: object, expected: str) -> None:
        self._said = f"expected {expected}, found {type(value).__name__} {reprlib.repr(value)}"

    def _refuse(self) -> NoReturn:
        raise TypeError(self._said)

    __bool__ = __index__ = __int__ = __float__ = __len__ = _refuse


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"),  # numpy's
    "int": lambda value: _is_int(value) and -0x8000_0000 <= value < 0x8000_0000,
    "long": lambda value: _is_int(value) and -0x8000_0000_0000_0000 <= value < 0x8000_0000_0000_0000,
    "float": lambda value: isinstance(value, Real) and not isinstance(value, bool) and _is_float32(value),
    "double": lambda value: isinstance(value, Real) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str) and _is_read_by(UUID, value),
}
"""Which values are of a type, after fastavro has made a date, time or UUID a number or text."""
_LOGICAL: Mapping[str, tuple[type | tuple[type, ...], Callable[[Any], bool], str]] = {
    "date": (datetime, lambda value: False, "a date without a time"),
    _MILLIS: (time, lambda value: value.tzinfo is None, "a time without a time zone"),
    _MICROS: (time, lambda value: value.tzinfo is None, "a time without a time zone"),
    "timestamp-millis": (datetime, lambda value: value.tzinfo is not None, "a datetime with a time zone"),
    "timestamp-micros": (datetime, lambda value: value.tzinfo is not None, "a datetime with a time zone"),
    "local-timestamp-millis": (datetime, lambda value: value.tzinfo is None, "a datetime without a time zone"),
    "local-timestamp-micros": (datetime, lambda value: value.tzinfo is None, "a datetime without a time zone"),
}
"""Which values of a type a logical type keeps, and the name of these values."""


def _is_int(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _is_float32(value: Any) -> bool:
    try:
        _FLOAT32.pack(value)
    except OverflowError:
        return False
    return True


def _is_read_by(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _check(value: Any, schema: Any) -> Any:
    """Return a value as fastavro writes it by a schema that `check_values` has changed; an _Unfit for a wrong one."""
    kind, logical = schema["type"], schema[CHECKED]
    if logical is not None:
        if schema[_BESIDE_PLAIN] and logical != NO_INT and _is_int(value):
            return _Unfit(value, logical)
        declared, fits, expected = _LOGICAL.get(logical, ((), bool, ""))
        if isinstance(value, declared) and not fits(value):
            return _Unfit(value, expected)
        if schema[_BESIDE_MICROS] and isinstance(value, time) and logical == _MILLIS and value.microsecond % 1000:
            return _Unfit(value, "a time of whole milliseconds")
        if (
            isinstance(value, str)
            and logical == "date"
            and (schema[_BESIDE_TEXT] or not _is_read_by(date.fromisoformat, value))
        ):
            return _Unfit(value, "a date without a time")
        if (prepare := LOGICAL_WRITERS.get(f"{kind}-{logical}")) is not None:
            plain = prepare(value, schema)
            return plain if _TYPES[kind](plain) else _Unfit(value, logical if logical != NO_INT else kind)
    return value if _TYPES[kind](value) else _Unfit(value, f"Avro's {kind}")


def _check_array(value: Any, schema: Any) -> Any:
    is_text = isinstance(value, (str, bytes, bytearray, memoryview, Mapping))
    return _Unfit(value, "a list") if is_text else value


def _check_decimal(value: Any, schema: Any) -> Any:
    """Return a value of a union that has bytes as they are, too."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _Unfit(value, "a Decimal")
    return LOGICAL_WRITERS[f"{schema['type']}-{schema[CHECKED]}"](value, schema)


def _quickly(exact: type) -> Callable[[Any, Any], Any]:
    """Return `_check`, faster for values of a type that needs no more than that."""
    return lambda value, schema: value if type(value) is exact and schema[CHECKED] is None else _check(value, schema)


for _type in _TYPES:
    LOGICAL_WRITERS[f"{_type}-{CHECKED}"] = _check
LOGICAL_WRITERS[f"boolean-{CHECKED}"], LOGICAL_WRITERS[f"double-{CHECKED}"] = _quickly(bool), _quickly(float)
LOGICAL_WRITERS[f"array-{CHECKED}"] = _check_array
for _type in _BYTES:
    LOGICAL_WRITERS[f"{_type}-{CHECKED}"] = _check_decimal


def kind_of(schema: Any) -> Any:
    """Return the name of a schema's type, "union" for a union; a schema that is nested in another "type"."""
    if isinstance(schema, list):
        return "union"
    return schema["type"] if isinstance(schema, dict) else schema


def _value(schema: Any, default: Any, named: Mapping[str, Any]) -> Any:
    """Return the Python value of a default as the schema's JSON has it; one that is a value already is kept."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    kind = kind_of(schema)
    if isinstance(kind, (dict, list)) and kind is not schema:
        return _value(kind, default, named)
    if kind == "union":
        return _value(next((each for each in schema if _fits(each, default, named)), "null"), default, named)
    if kind == "array":
        return [_value(schema["items"], each, named) for each in default]
    if kind == "map":
        return {name: _value(schema["values"], each, named) for name, each in default.items()}
    if kind in RECORDS:
        found = {field["name"]: field["default"] for field in schema["fields"] if "default" in field} | default
        return {field["name"]: _value(field["type"], found[field["name"]], named) for field in schema["fields"]}
    if kind in _BYTES and isinstance(default, str):
        default = default.encode("latin-1")
    elif kind in _FLOATS:
        default = float(default)
    elif not isinstance(default, (int, str)):
        return default
    logical = schema.get(CHECKED, schema.get("logicalType")) if isinstance(schema, dict) else None
    read = cast(Reader | None, LOGICAL_READERS.get(f"{kind}-{logical}"))
    return default if read is None or not isinstance(default, (int, str, bytes)) else read(default, schema, None)


def _fits(schema: Any, default: Any, named: Mapping[str, Any]) -> bool:
    """Return whether a default in JSON may be one of a branch of a union."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    kind = kind_of(schema)
    if default is None or isinstance(default, bool):
        return bool(kind == ("null" if default is None else "boolean"))
    if isinstance(default, (int, float)):
        return kind in _FLOATS or (kind in _INTS and isinstance(default, int))
    if isinstance(default, str):
        return kind in ("string", *_BYTES) or (kind == "enum" and default in schema["symbols"])
    return kind == "array" if isinstance(default, list) else kind in ("map", "record", "error")


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
    """The unions with several records in a parsed schema: values there are pairs, (full name of the record, record).

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
