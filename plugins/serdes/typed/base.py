"""TypedSerde: values of one type as JSON, whichever library converts them."""

from __future__ import annotations

import json
import reprlib
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar, is_typeddict

import msgspec

from penstock import ConfigError, Serde, SerdeError
from penstock.support.text_form import from_json, to_json

from ..not_finite import check_finite
from .json_schemas import changes, essence, of_written
from .read_back import check_same, equality_is_exact, lost_field
from .shipped import classes_inside, restore_fields
from .unions import Schema

T = TypeVar("T")
_FORM = "of"


class TypedSerde(Serde[T], Generic[T]):
    """Values of one type as JSON. What it writes, it has read and compared.

    So a wrong field, or one that would be lost, is refused where it is written.
    """

    _chooses_by_value = False
    """Whether the alternative of a union is the one that fits a value best; else their values are never alike."""

    def __init__(self, kind: Any, *, refuses_extra: bool) -> None:
        self.value_type = kind
        self.refuses_extra = refuses_extra
        self.name = f"of({kind_name(kind)})"
        # The class of a NamedTuple, an Enum or a model is exact; a subclass would come back as its base.
        self._exact = kind if _is_class(kind) and not is_typeddict(kind) else None
        self._equality_is_exact = equality_is_exact(kind)
        self._is_for_values = False
        self._writes_equal_values_differently = self._has_other_bytes_of_equals()
        self._writes_keys_again = self._writes_equal_values_differently or self._writes_defaults_in_keys()
        self._written = of_written(
            self._essence(),
            ints_become_numbers=self._writes_equal_values_differently,
            sorts_sets=self._sorts_sets_by_text(),
            keys_have_defaults=self._writes_defaults_in_keys(),
        )
        self._form = f"{_FORM}({json.dumps(self._written, separators=(',', ':'), sort_keys=True)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _sent, (type(self), self.value_type, self.refuses_extra, self._form, self._is_for_values)

    def __deepcopy__(self, memo: object) -> TypedSerde[T]:
        """Return the serde itself: several threads may use one, and to make another takes milliseconds."""
        return self

    def bind(self, topic: str, *, is_key: bool) -> Serde[T]:
        return self if is_key else self.for_values()

    def for_values(self) -> TypedSerde[T]:
        """Return the serde that writes a value once: an int in place of a float or a Decimal stays an int.

        A field that was absent where the value was read may stay absent.
        """
        if self._is_for_values or not self._writes_keys_again:
            return self
        made: TypedSerde[T] = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _is_for_values=True)
        return made

    def serialize(self, value: T) -> bytes:
        """Return `value` as JSON. Raises SerdeError for another type, and with the path of a wrong field."""
        if self._exact is not None and type(value) is not self._exact:
            raise SerdeError(
                f"serde {self.name!r}: expected {kind_name(self.value_type)}, found {kind_name(type(value))} "
                f"{reprlib.repr(value)}; return that type, or name a serde that fits"
            )
        try:
            data = self._write(value)
            again = self._read_again(data, value)
            if not (self._equality_is_exact and again == value):
                check_same(value, again)
            if self._writes_keys_again and not self._is_for_values:
                data = self._write_key(again)
        except Exception as error:
            raise SerdeError(
                f"serde {self.name!r}: cannot write {reprlib.repr(value)}: {self._said(error)}; set its fields to what "
                f"{kind_name(self.value_type)} declares, and declare them so that they are read as they are written"
            ) from error
        return data

    def _read_again(self, data: bytes, value: T) -> T:
        try:
            return self._read(data)
        except Exception:
            check_finite(value, data)  # a better reason than the null in its place
            raise

    def deserialize(self, data: bytes) -> T:
        """Return the value. Raises SerdeError with the path of a missing, unknown or wrong field."""
        try:
            return self._read(data)
        except Exception as error:
            shown = data if len(data) <= 200 else data[:200] + b"..."
            raise SerdeError(
                f"serde {self.name!r}: {self._said(error)}; found {shown!r}: give a field that may be absent a default "
                "(and one that may be null `| None`), or name the serde it was written with"
            ) from error

    def of_rows(self, rows: Sequence[Any]) -> list[T | None]:
        """Return the values that rows have in dicts, lists and Python's own types, None for None.

        A NamedTuple is a tuple of its fields. Raises SerdeError with the path of a wrong field.
        """
        try:
            return self._convert(rows)
        except Exception as error:
            shown = reprlib.repr(rows[0] if len(rows) == 1 else rows)
            raise SerdeError(
                f"serde {self.name!r}: {self._said(error)}; found {shown}: give a field that may be absent a default "
                "(and one that may be null `| None`), or change the column"
            ) from error

    def to_json(self, value: T) -> Any:
        """Return the JSON that the value is written as."""
        return to_json(json.loads(self.serialize(value)))

    def from_json(self, data: Any) -> T:
        return self.of_plain(from_json(data))

    def key_from_json(self, data: Any) -> T:
        plain = from_json(data)
        key = self.of_plain(plain)
        exact = object.__new__(type(self))
        exact.__dict__.update(self.__dict__, refuses_extra=True)
        try:
            exact.of_plain(plain)
        except SerdeError as error:
            if lost := self._lost_field(plain, key):
                raise no_such_field(self.name, lost, self.value_type) from error
        return key

    def of_plain(self, data: Any) -> T:
        """Return the value of JSON data without tags; values of Python's own types may stand for their JSON.

        Raises SerdeError for a value that does not fit the type.
        """
        return self.deserialize(self._text_of(data))

    def _text_of(self, data: Any) -> bytes:
        try:
            return json.dumps(data, default=_in_json).encode()
        except (TypeError, ValueError) as error:
            raise SerdeError(f"serde {self.name!r}: expected JSON of {kind_name(self.value_type)}: {error}") from error

    def written_form(self) -> str:
        """Return the JSON schema of the type, with the order of its fields, and without the values of defaults."""
        return self._form

    def unreadable(self, form: str) -> str:
        """Return which fields have changed in a way that the rows of `form` do not follow; "" if all can be read."""
        if form == self._form:
            return ""
        if not form.startswith(f"{_FORM}({{"):
            return super().unreadable(form)
        essence, chooses = self._essence_to_read(), self._chooses_by_value
        return self._said_of(changes(_essence_of(form), essence, ignores_extra=True, chooses_by_value=chooses))

    def unfindable(self, form: str) -> str:
        """Return which changes give a key other bytes than a type of `form` gave it; "" if it has the same."""
        if form == self._form:
            return ""
        if not form.startswith(f"{_FORM}({{"):
            return super().unfindable(form)
        before, chooses = _essence_of(form), self._chooses_by_value
        found = changes(before, self._written, ignores_extra=True, of_keys=True, chooses_by_value=chooses)
        return self._said_of(found)

    def _said_of(self, found: Sequence[str]) -> str:
        return f"{self.name} as it was before, and {'; '.join(found)}" if found else ""

    def _lost_field(self, plain: Any, key: T) -> str:
        """Return the path of the first field of JSON data that the key made of it does not have; "" if it has all."""
        # A model writes computed fields, and further ones where it allows them.
        return lost_field(plain, json.loads(self.serialize(key)))

    def _has_other_bytes_of_equals(self) -> bool:
        """Return whether a value may be written in other bytes than what is read back, which is equal to it."""
        return False

    def _writes_defaults_in_keys(self) -> bool:
        """Return whether a key that was read may lack fields that an equal one has."""
        return False

    def _sorts_sets_by_text(self) -> bool:
        """Return whether sets are in the order of what is written because Python cannot sort them."""
        return False

    def _essence(self) -> dict[str, Any]:
        """Return the schema as far as it says whether rows can be read, with the names of a NamedTuple's fields."""
        return essence(self.json_schema())

    def _essence_to_read(self) -> Schema:
        """Return the essence, with what only matters for rows from before."""
        return self._essence()

    def _write_key(self, value: T) -> bytes:
        """Return the JSON of a value that was read, the same bytes for each that is equal. Raises any exception."""
        return self._write(value)

    @abstractmethod
    def _write(self, value: T) -> bytes:
        """Return the JSON of `value`. Raises any exception."""

    @abstractmethod
    def _read(self, data: bytes) -> T:
        """Return the value of the JSON text. Raises any exception."""

    @abstractmethod
    def _convert(self, rows: Sequence[Any]) -> list[T | None]:
        """Return the result of `of_rows`. Raises any exception."""

    @abstractmethod
    def _said(self, error: Exception) -> str:
        """Return the message of an error of `_write` or `_read`, with the path of the field first."""

    @abstractmethod
    def json_schema(self) -> Schema:
        """Return the JSON schema of the written form."""


def _essence_of(form: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(form[len(_FORM) + 1 : -1])
    return found


def kind_name(kind: Any) -> str:
    """Return the name of a type as a program writes it: Order, list[Order]."""
    return kind.__qualname__.rpartition("<locals>.")[2] if _is_class(kind) else str(kind)


def no_such_field(serde: str, path: str, kind: Any) -> SerdeError:
    """Return the refusal of a key that was given with a field at `path` which its type does not have."""
    return SerdeError(
        f"serde {serde!r}: {path}: keys of {kind_name(kind)} have no such field, and without it this would be another "
        "key: leave it out if that is meant, or give the program whose keys have it"
    )


def _in_json(value: Any) -> Any:
    """Return the JSON form of a value with a tag."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, timedelta):
        return msgspec.to_builtins(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _is_class(kind: Any) -> bool:
    # list[int] is a type, too, and since Python 3.11 Any is one.
    return isinstance(kind, type) and not hasattr(kind, "__args__") and kind is not Any


def _sent(
    made_by: type[TypedSerde[Any]], kind: Any, refuses_extra: bool, form: str, is_for_values: bool
) -> TypedSerde[Any]:
    """Make a serde again in another process. Raises ConfigError if its class arrived there without its fields."""
    restore_fields(classes_inside(kind))
    made = made_by(kind, refuses_extra=refuses_extra)
    if made.written_form() != form:
        raise ConfigError(
            f"serde {made.name!r}: the class {kind_name(kind)} was sent to this process without its fields, as a class "
            "of a script is sent: a msgspec.Struct cannot be sent so. Make it a dataclass, or put it into a package "
            "that is installed on every host"
        )
    return made.for_values() if is_for_values else made
