"""The `avro` serde: Avro with its schemas in a registry."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from penstock import SerdeError
from penstock.support.own_copy import own_copy
from penstock.support.packages import needed
from penstock.support.text_form import from_json

with needed("serde 'avro'", "avro"):
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    from avro.schema import parse
    from confluent_kafka.schema_registry import Schema
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from fastavro import parse_schema, schemaless_reader, schemaless_writer

    from .avro_schemas import (
        RecordUnions,
        check_values,
        keep_ints,
        prepare_reader,
        prepare_schema,
        read_texts_as_written,
        reads_text_beside_bytes,
    )
    from .base import RegistryOptions, RegistrySerde, declared_schema
    from .client import MockRegistryClient, RegistryClient

from ..typed.base import no_such_field
from ..typed.read_back import lost_field
from ..typed.set_order import has_defaults_in_class, inside, to_builtins
from ..typed.shipped import classes_inside, prepare_classes, restore_fields

T = TypeVar("T")
_STRICT = {"validate.strict.allow.default": True}
"""A field that the schema does not have is an error, and so is one that is missing and has no default."""
_NATURAL = (bytes, date, datetime, time, Decimal, UUID)
"""Types that Avro's logical types take as they are."""


class _Serializer(AvroSerializer):
    """Confluent's, for the newest schema of a subject, too."""

    has_type = False
    _unions: RecordUnions | None = None

    def _get_parsed_schema(self, schema: Schema) -> Any:
        parsed = self._parsed_schemas.get_parsed_schema(schema)
        if not parsed:
            parsed = check_values(keep_ints(super()._get_parsed_schema(schema)))
            self._parsed_schemas.set(schema, parsed)
        return parsed

    def _execute_rules(self, *given: Any) -> Any:
        # Called with the newest schema, and the value that is written by it.
        value, parsed = super()._execute_rules(*given), self._get_parsed_schema(given[4])
        if self.has_type:
            return value
        if self._unions is None or self._unions.parsed is not parsed:
            self._unions = RecordUnions(parsed)
        return self._unions.checked(value, None)


class AvroSerde(RegistrySerde[T]):
    """Avro, as Confluent's KafkaAvroSerializer writes it.

    `schema`: the path of a file (`order.avsc`), the schema's text, or None: values are then read by the schema that
    wrote them, and written by the newest one of the subject. Records are dicts, or values of the type `kind`.
    """

    name = "avro"
    extra = "avro"

    @overload
    def __init__(
        self: AvroSerde[Any],
        schema: str | Path | None = None,
        kind: None = None,
        **options: Unpack[RegistryOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        schema: str | Path | None,
        kind: type[T],
        **options: Unpack[RegistryOptions],
    ) -> None: ...
    def __init__(self, schema: str | Path | None = None, kind: Any = None, **options: Unpack[RegistryOptions]) -> None:
        """Take the schema and where it is registered. Raises ConfigError for a schema, or a type, that is none."""
        super().__init__(None if schema is None else _text_of(schema), **options)
        self.value_type = kind
        if kind is not None:
            prepare_classes(kind, "serde 'avro'")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        restore_fields(classes_inside(self.value_type))

    def record_name(self) -> str | None:
        declared = None if self.schema is None else json.loads(self.schema)
        if not isinstance(declared, dict) or "name" not in declared:
            return None
        space, name = declared.get("namespace"), declared["name"]
        return f"{space}.{name}" if space and "." not in name else str(name)

    def written_form(self) -> str:
        """Return the schema in its canonical form: rows have the id of the schema that wrote them."""
        return "avro" if self.schema is None else f"avro({self.schema})"

    def unreadable(self, form: str) -> str:
        """Return why the schema cannot read what that of `form` wrote, by Avro's rules; "" if it can."""
        if not form.startswith("avro(") and form != "avro":
            return super().unreadable(form)
        if form == "avro" or self.schema is None:
            return ""
        found = self._differences(_schema_of(form[5:-1]))
        return f"another schema, and {found}" if found else ""

    def to_json(self, value: T) -> Any:
        return super().to_json(value if self.value_type is None else self._to_plain()(value, None))

    def from_json(self, data: Any) -> T:
        if self.value_type is None:
            return super().from_json(data)
        plain = from_json(data)
        try:
            return self.deserialize(self.serialize(msgspec.convert(plain, self.value_type, builtin_types=_NATURAL)))
        except msgspec.ValidationError as error:
            raise SerdeError(f"serde 'avro': {error}") from error

    def key_from_json(self, data: Any) -> T:
        key = self.from_json(data)
        if self.value_type is not None and (lost := lost_field(from_json(data), from_json(self.to_json(key)))):
            raise no_such_field("avro", lost, self.value_type)
        return key

    def _as_schema(self) -> Schema:
        return _schema_of(self.schema)

    def _functions(
        self, writing: dict[str, Any], reading: dict[str, Any]
    ) -> tuple[Callable[..., bytes], Callable[..., Any]]:
        kind = self.value_type
        unions = None if self.schema is None else RecordUnions(_parsed(self.schema))
        if kind is None:
            to_plain: Convert | None = None if unions is None or not unions.are_there else unions.checked
            of_plain: Convert | None = None
        else:
            # Values of a type have no names: what tells them apart is in their fields.
            to_plain = self._to_plain()
            of_plain = lambda value, _: msgspec.convert(value, kind, builtin_types=_NATURAL)  # noqa: E731
        write = _Serializer(self.client, self._as_schema() if self.schema else None, to_plain, {**writing, **_STRICT})
        write.has_type = kind is not None
        if self.schema is not None:
            write._parsed_schema = check_values(prepare_schema(write._parsed_schema))
        read = AvroDeserializer(self.client, self.schema, of_plain, conf=reading)
        return (
            write if self.schema is None else writer_of(write, self.schema, to_plain),
            reader_of(read, self.client, self.schema, of_plain),
        )

    def _to_plain(self) -> Convert:
        """Return how a value of the type becomes a record. One that `of` has read may lack fields with a default."""
        info = msgspec.inspect.type_info(self.value_type)
        lacking = [each for each in inside(info, set()) if has_defaults_in_class(each)]
        if not lacking:
            return lambda value, _: msgspec.to_builtins(value, builtin_types=_NATURAL)
        if lacking != [info] or not isinstance(info, msgspec.inspect.DataclassType):
            return lambda value, _: to_builtins(info, value)
        count = len(info.fields)

        def to_plain(value: Any, _: Any) -> Any:
            plain = msgspec.to_builtins(value, builtin_types=_NATURAL)
            return plain if len(plain) == count else to_builtins(info, value)

        return to_plain

    def _differences(self, written: Schema) -> str:
        if written.references or self.schema is None or written.schema_str is None:
            return ""
        reader, writer = parse(self.schema), parse(written.schema_str)
        found = ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
        if found.compatibility == SchemaCompatibilityType.compatible:
            return ""
        declared = json.loads(self.schema)
        places = sorted({_path(declared, location.split("/")) for location in found.locations})
        said = sorted(each if " " in each else f"{each!r} is new and has no default" for each in found.messages)
        return f"{', '.join(filter(None, places)) or 'the value'}: {'; '.join(said)}"


def _schema_of(text: str | None) -> Schema:
    return Schema.from_dict({"schema": text, "schemaType": "AVRO"})


def _text_of(schema: str | Path) -> str:
    """Return the canonical text of a schema, or of the file with it. Raises ConfigError."""
    declared = declared_schema(
        schema,
        lambda text, _: parse(text),
        serde="avro",
        suffix=".avsc",
        kind="Avro schema",
        expected="an Avro schema in JSON",
    )
    declared = {"type": declared} if isinstance(declared, str) else declared  # as Confluent's serializers take it
    return json.dumps(declared, separators=(",", ":"))


def _path(schema: Any, location: list[str]) -> str:
    """Return the path of a field, such as lines[].sku, for a location in the schema, fields/1/type/items/fields/0."""
    path = ""
    for step in filter(None, location):
        try:
            schema = schema[int(step)] if isinstance(schema, list) else schema[step]
        except (KeyError, ValueError, IndexError, TypeError):
            break
        if step == "items":
            path += "[]"
        elif step == "values":
            path += "[...]"
        elif isinstance(schema, dict) and "name" in schema and "type" in schema and step.isdecimal():
            path += f".{schema['name']}"
    return path.removeprefix(".")


Convert = Callable[[Any, Any], Any]
_PREFIX = 5
"""Bytes before the value: a zero, and the id of the schema."""


def writer_of(write: Callable[..., bytes], schema: str, to_plain: Convert | None) -> Callable[..., bytes]:
    """Return a function that writes the first value by `write`, which registers the schema, and then by itself."""
    parsed, prefix = _parsed(schema), b""
    parsed = None if parsed is None else check_values(parsed)

    def write_fast(value: Any, context: Any) -> bytes:
        nonlocal prefix
        if not prefix or parsed is None:
            data = write(value, context)
            prefix = data[:_PREFIX]
            return data
        buffer = BytesIO()
        buffer.write(prefix)
        schemaless_writer(
            buffer, parsed, value if to_plain is None else to_plain(value, context), strict_allow_default=True
        )
        return buffer.getvalue()

    return write_fast


def reader_of(
    read: AvroDeserializer,
    client: RegistryClient | MockRegistryClient,
    schema: str | None,
    of_plain: Convert | None,
) -> Callable[..., Any]:
    """Return a function that reads values by fastavro.

    Schemas with rules (such as encryption) are left to `read`, as are bytes that are no value of a schema.
    """
    own = None if schema is None else _parsed(schema)
    other = None if own is None or schema is None else prepare_reader(parse_schema(json.loads(schema)))
    unions = None if own is None or of_plain is not None else RecordUnions(own)
    has_names = unions is not None and unions.are_there
    has_texts = other is not None and reads_text_beside_bytes(other)
    known: dict[bytes, tuple[Any, Any, RecordUnions | None] | None] = {}

    def schemas(data: bytes) -> tuple[Any, Any, RecordUnions | None] | None:
        """Return the schemas to read a value with: the writer's, None or the reader's, and what takes names away."""
        if schema is not None and own is None:
            return None
        found = client.get_schema(int.from_bytes(data[1:_PREFIX], "big"))
        if found.rule_set is not None or not found.schema_str:
            return None
        writer = read._get_parsed_schema(found) if found.references else _parsed(found.schema_str)
        if writer is None:
            return None
        if own is None or writer == own:
            # fastavro's own names are also those of enums and fixed types that a union has by name.
            written = None if of_plain is not None else RecordUnions(writer)
            is_named = written is not None and written.are_there
            return (written.naming(), None, written) if written is not None and is_named else (writer, None, None)
        writer = RecordUnions(writer).naming() if has_names else writer
        return read_texts_as_written(writer) if has_texts else writer, other, unions if has_names else None

    def read_fast(data: bytes, context: Any) -> Any:
        prefix = data[:_PREFIX]
        pair = known.get(prefix)
        if pair is None:
            if prefix not in known and data[:1] == b"\0" and len(data) >= _PREFIX:
                pair = known[prefix] = schemas(data)
            if pair is None:
                return read(data, context)
        writer, reader, named = pair
        plain = schemaless_reader(BytesIO(data[_PREFIX:]), writer, reader)
        if reader is not None:
            plain = own_copy(plain)  # a default is one object for all values
        if named is not None:
            plain = named.named(plain)
        return plain if of_plain is None else of_plain(plain, context)

    return read_fast


def _parsed(schema: str) -> Any:
    """Return a schema as fastavro takes it; None for bytes alone: Confluent's serializers write them as they are."""
    declared = json.loads(schema)
    kind = declared.get("type") if isinstance(declared, dict) else declared
    return None if kind == "bytes" else prepare_schema(parse_schema(declared))
