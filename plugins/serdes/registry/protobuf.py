"""The serde of Protobuf messages with their schemas in a registry."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar, Unpack

from penstock import ConfigError, SerdeError
from penstock.support.packages import needed
from penstock.support.text_form import from_json, to_json

with needed("serde 'protobuf'", "protobuf"):
    from confluent_kafka.schema_registry import Schema
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from google.protobuf.json_format import Error, MessageToDict, ParseDict, ParseError
    from google.protobuf.message import DecodeError, Message

    from .base import RegistryOptions, RegistrySerde

M = TypeVar("M", bound=Message)
_FORM = "protobuf"
_WHOLE = "!protobuf"
"""The name in the text form that has the bytes of a message."""
_WITHOUT_JSON = (Error, ValueError, TypeError, OverflowError)
"""What Protobuf raises for a message or JSON that it cannot convert."""
_TEXT = ""
"""Stands beside the names of messages in a written form, for the check sum of the schema's text."""
_OF_ALL = ("google/protobuf/", "google/type/", "confluent/")
"""The beginnings of the names of files that are not registered with a schema that imports them."""
_Fields = dict[str, dict[str, list[str]]]
_FORMAT = {"use.deprecated.format": False}


class ProtobufSerde(RegistrySerde[M]):
    """Messages of one class that protoc has made, as Confluent's KafkaProtobufSerializer writes them.

    The module of the class must be there on every host. Schemas that the message imports are registered as well.
    """

    name = "protobuf"

    def __init__(
        self,
        message: type[M],
        **options: Unpack[RegistryOptions],
    ) -> None:
        """Take the class of the messages. Raises ConfigError for another class."""
        if not isinstance(message, type) or not issubclass(message, Message):
            raise ConfigError(f"serde 'protobuf': expected a class that protoc has made, found {message!r}")
        self._message = message
        self._fields = _fields(message.DESCRIPTOR, {})
        self._text = _check_sum(message.DESCRIPTOR.file)
        super().__init__(message.DESCRIPTOR.full_name, **options)

    def serialize(self, value: M) -> bytes:
        """Return the message behind its schema's id. Raises SerdeError for one of another class."""
        if not isinstance(value, self._message):
            raise SerdeError(
                f"serde 'protobuf': expected {self.schema}, found {type(value).__name__}; return that message, or name "
                "a serde that fits"
            )
        return super().serialize(value)

    def record_name(self) -> str | None:
        return self.schema

    def written_form(self) -> str:
        """Return numbers and types of all fields, since names are not in the bytes, and a check sum of the schema."""
        return self._form({**self._fields, _TEXT: {"sha256": [self._text]}})

    def unfindable(self, form: str) -> str:
        """Return why keys have other bytes than in `form`: the id of the schema, which is that of a whole file."""
        if form in (self.written_form(), self._form(self._fields)):  # earlier forms have no check sum
            return ""
        return (
            f"another schema of {self.schema}, or one of a file in which, or in whose imports, something else has "
            "changed, and the id of the schema is in front of each key"
        )

    def _form(self, fields: _Fields) -> str:
        return f"{_FORM}({json.dumps([self.schema, fields], separators=(',', ':'), sort_keys=True)})"

    def unreadable(self, form: str) -> str:
        """Return the fields that have another type than in `form`; "" if there are none."""
        if not form.startswith(f"{_FORM}("):
            return super().unreadable(form)
        root, before = json.loads(form[len(_FORM) + 1 : -1])
        found = list(_changes(before, self._fields, root, str(self.schema), set()))
        return f"another schema of {self.schema}, and {'; '.join(found)}" if found else ""

    def to_json(self, value: M) -> Any:
        """Return the message as Protobuf's JSON, by the names of its fields.

        Where that would be read as another message, because of a field that the class does not know or the largest
        float, the object also has the bytes of the message. It has nothing else where Protobuf has no JSON for the
        message, such as for an Any of an unknown type.
        """
        try:
            # For an Any it is a dict of another class, which has no text form.
            shown = to_json(json.loads(json.dumps(MessageToDict(value, preserving_proto_field_name=True))))
        except _WITHOUT_JSON:
            return {_WHOLE: _base64(value)}
        try:
            is_same = _bytes(ParseDict(from_json(shown), self._message())) == _bytes(value)
        except _WITHOUT_JSON:
            is_same = False
        fields = shown if isinstance(shown, dict) else {}
        return shown if is_same and _WHOLE not in fields else {**fields, _WHOLE: _base64(value)}

    def from_json(self, data: Any) -> M:
        plain = from_json(data)
        if isinstance(plain, dict) and _WHOLE in plain:  # `to_json` of it alone, as of a client's entry, is a `!dict`
            return self._whole(plain)
        try:
            message: M = ParseDict(plain, self._message())
            return message
        except ParseError as error:
            raise SerdeError(f"serde 'protobuf': {error}") from error

    def _whole(self, data: dict[str, Any]) -> M:
        try:
            whole: M = self._message.FromString(b64decode(data[_WHOLE], validate=True))
        except (ValueError, TypeError, DecodeError) as error:
            raise SerdeError(f"serde 'protobuf': {_WHOLE!r} is no {self.schema} in base64: {error}") from error
        shown = from_json(self.to_json(whole))
        # Others may have written a map's entries in another order, so their bytes are not compared.
        if {**(shown if isinstance(shown, dict) else {}), _WHOLE: data[_WHOLE]} != data:
            raise SerdeError(f"serde 'protobuf': {_WHOLE!r} has other fields than stand beside it; leave it out")
        return whole

    def _prepare_reading(self) -> None:
        """Leave it to the registry: Protobuf reads what it can, and no field has to be there."""

    def _as_schema(self) -> Schema:
        raise NotImplementedError

    def _prepare_writing(self) -> None:
        # Confluent's serializer registers what the message imports first; it does so for an empty message, too.
        write, _, context = self._made or self._make()
        write(self._message(), context)

    def _functions(
        self, writing: dict[str, Any], reading: dict[str, Any]
    ) -> tuple[Callable[..., bytes], Callable[..., Any]]:
        serializer = ProtobufSerializer(self._message, self.client, {**writing, **_FORMAT})

        def write(message: M, context: object) -> bytes:
            # Confluent's writes the entries of a map in an order of the process, which gives equal keys other bytes.
            header: bytes = serializer(self._message(), context)
            return header + _bytes(message)

        return write, ProtobufDeserializer(self._message, {**reading, **_FORMAT}, self.client)

    def _differences(self, written: Schema) -> str:
        return ""


def _bytes(message: Message) -> bytes:
    written: bytes = message.SerializeToString(deterministic=True)
    return written


def _base64(message: Message) -> str:
    return b64encode(_bytes(message)).decode()


def _check_sum(file: FileDescriptor) -> str:
    """Return a check sum of the files that are registered as the schema of a message."""
    found: dict[str, bytes] = {}

    def add(each: FileDescriptor) -> None:
        if each.name not in found:
            found[each.name] = each.serialized_pb
            for other in each.dependencies:
                if not other.name.startswith(_OF_ALL):
                    add(other)

    add(file)
    return sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]


def _fields(message: Descriptor, known: _Fields) -> _Fields:
    """Return for each message inside a message its fields: number -> name and type."""
    if message.full_name not in known:
        known[message.full_name] = fields = {}
        for field in message.fields:
            fields[str(field.number)] = [field.name, _type(field)]
            if field.message_type is not None:
                _fields(field.message_type, known)
    return known


def _type(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        kind = f"message {field.message_type.full_name}"
    else:
        names = {number: name for name, number in vars(FieldDescriptor).items() if name.startswith("TYPE_")}
        kind = names[field.type].removeprefix("TYPE_").lower()
    return f"repeated {kind}" if field.is_repeated else kind


def _changes(before: Any, now: Any, was: str, message: str, seen: set[str]) -> Any:
    """Yield each field whose number has another type."""
    if message in seen:
        return
    seen.add(message)
    for number, (name, kind) in before.get(was, {}).items():
        if number not in now.get(message, {}):
            yield f"field {name!r} (number {number}) of {message} is gone: keep it, with `deprecated = true`"
            continue
        becomes = now[message][number][1]
        one, two = (each.partition("message ")[2] for each in (kind, becomes))
        if one and two and kind.startswith("repeated") == becomes.startswith("repeated"):
            yield from _changes(before, now, one, two, seen)
        elif kind != becomes:
            yield f"field {name!r} (number {number}) of {message} was {kind} and is {becomes}"
