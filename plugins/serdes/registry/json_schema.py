"""The `json_schema` serde: JSON with its schemas in a registry."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

import msgspec
import orjson

from penstock.support.packages import needed

with needed("serde 'json_schema'", "json-schema"):
    from confluent_kafka.schema_registry import Schema
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from jsonschema.validators import validator_for

    from .base import RegistryOptions, RegistrySerde, declared_schema

from ..json import dump_finite
from ..of import typed_serde
from ..typed.base import kind_name
from ..typed.json_schemas import changes, closed, essence

T = TypeVar("T")
_FORM = "json_schema"
_TEXT = "$comment"
"""The keyword of a written form that has the check sum of the schema's text; it says nothing about values."""


class JsonSchemaSerde(RegistrySerde[T]):
    """JSON that fits a schema, as Confluent's KafkaJsonSchemaSerializer writes it.

    `schema`: the path of a file (`order.json`), the schema's text, or a type as for `of`, which has a schema; values
    are of that type, else what JSON has. None: the newest schema of the subject.
    """

    name = "json_schema"

    @overload
    def __init__(
        self: JsonSchemaSerde[Any],
        schema: str | Path | None = None,
        **options: Unpack[RegistryOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        schema: type[T],
        **options: Unpack[RegistryOptions],
    ) -> None: ...
    def __init__(self, schema: Any = None, **options: Unpack[RegistryOptions]) -> None:
        """Take the schema and where it is registered. Raises ConfigError for a schema that is none."""
        is_text = schema is None or isinstance(schema, str | Path)
        self._typed = None if is_text else typed_serde(schema)
        text: str | None
        if self._typed is not None:
            text = _text({"title": kind_name(schema), **closed(self._typed.json_schema())})
        else:
            text = None if schema is None else _text_of(schema)
        super().__init__(text, **options)
        self.value_type = None if is_text else schema

    def record_name(self) -> str | None:
        declared = {} if self.schema is None else json.loads(self.schema)
        return declared.get("title") if isinstance(declared, dict) else None

    def written_form(self) -> str:
        """Return the parts of the schema that say which values fit, and a check sum of all of it."""
        if self.schema is None:
            return _FORM
        return f"{_FORM}({_text({**self._essence(), _TEXT: sha256(self.schema.encode()).hexdigest()[:16]})})"

    def unfindable(self, form: str) -> str:
        """Return why keys have other bytes than in `form`: the id of the schema, which is that of its whole text."""
        if form in (self.written_form(), f"{_FORM}({_text(self._essence())})"):  # earlier forms have no check sum
            return ""
        return (
            "another schema, or one in which a title, a description, a default or the order of fields has changed, and "
            "the id of the schema is in front of each key"
        )

    def _essence(self) -> dict[str, Any]:
        return essence(json.loads(self.schema or "{}"))

    def unreadable(self, form: str) -> str:
        """Return why values of the schema in `form` do not fit this one; "" if they do."""
        if form == _FORM or (self.schema is None and form.startswith(f"{_FORM}(")):
            return ""
        if not form.startswith(f"{_FORM}("):
            return super().unreadable(form)
        found = self._changes(form[len(_FORM) + 1 : -1])
        return f"another schema, and {found}" if found else ""

    def to_json(self, value: T) -> Any:
        return super().to_json(value) if self._typed is None else self._typed.to_json(value)

    def from_json(self, data: Any) -> T:
        return super().from_json(data) if self._typed is None else self._typed.from_json(data)

    def key_from_json(self, data: Any) -> T:
        return super().key_from_json(data) if self._typed is None else self._typed.key_from_json(data)

    def _as_schema(self) -> Schema:
        return Schema.from_dict({"schema": self.schema, "schemaType": "JSON"})

    def _functions(
        self, writing: dict[str, Any], reading: dict[str, Any]
    ) -> tuple[Callable[..., bytes], Callable[..., Any]]:
        typed = self._typed
        # A type checks values itself, and leaves out fields that newer writers have: its schema is closed.
        reading = {**reading, "validate": typed is None}
        if typed is None:
            to_plain, of_plain = None, None
        else:
            to_plain = lambda value, _: msgspec.json.decode(typed.serialize(value))  # noqa: E731
            of_plain = lambda value, _: typed.deserialize(_dump(value))  # noqa: E731
        return (
            JSONSerializer(self.schema, self.client, to_plain, writing, json_encode=_dump),
            JSONDeserializer(self.schema, of_plain, self.client, reading, json_decode=_load),
        )

    def _differences(self, written: Schema) -> str:
        if written.references or self.schema is None or written.schema_str is None:
            return ""
        return self._changes(written.schema_str)

    def _changes(self, before: str) -> str:
        try:
            return "; ".join(changes(essence(json.loads(before)), self._essence()))
        except (KeyError, TypeError, AttributeError):  # a schema of another kind than types have: the registry decides
            return ""


_load: Callable[[Any], Any] = msgspec.json.decode
"""Unlike orjson's, it reads integers of more than 64 bits as what they are."""


def _dump(value: Any) -> bytes:
    try:
        return dump_finite(value)
    except TypeError:
        exact = _with_long_integers(value)
        if exact is value:
            raise
        return dump_finite(exact)


def _with_long_integers(value: Any) -> Any:
    """Return a value with its integers of more than 64 bits as orjson writes them; the value itself without any."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return orjson.Fragment(str(int(value)))
    if isinstance(value, dict):
        made: Any = {name: _with_long_integers(each) for name, each in value.items()}
        return value if all(made[name] is value[name] for name in value) else made
    if isinstance(value, (list, tuple)):
        made = [_with_long_integers(each) for each in value]
        return value if all(map(operator.is_, made, value)) else made
    return value


def _text(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"))


def _text_of(schema: str | Path) -> str:
    """Return the text of a schema, or of the file with it. Raises ConfigError."""

    def check(text: str, declared: Any) -> None:
        validator_for(declared).check_schema(declared)

    declared = declared_schema(
        schema, check, serde="json_schema", suffix=".json", kind="JSON schema", expected="a JSON schema"
    )
    return _text(declared)
