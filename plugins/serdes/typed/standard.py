"""StandardSerde: dataclasses, NamedTuples, TypedDicts, enums and msgspec types, as msgspec writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from penstock import ConfigError

from .base import TypedSerde, kind_name
from .json_schemas import Schema
from .unknown_fields import unknown_field

T = TypeVar("T")
_CACHE = "__msgspec_cache__"
_AT = re.compile(r"(.*?)(?: - at (?:key in )?`\$\.?(.*)`)?$", re.DOTALL)


class StandardSerde(TypedSerde[T]):
    """Values of a type that msgspec converts. Elements of sets and keys of dicts are written in order."""

    def __init__(self, kind: Any, *, refuses_extra: bool) -> None:
        try:
            self._info = msgspec.inspect.type_info(kind)
            for each in _inside(self._info, set()):
                if isinstance(each, msgspec.inspect.CustomType):  # msgspec itself says so when a value is read
                    raise TypeError(f"JSON has nothing for {kind_name(each.cls)}")
            self._encoder = msgspec.json.Encoder(order="deterministic")
            self._decoder = msgspec.json.Decoder(kind)
            super().__init__(kind, refuses_extra=refuses_extra)
        except (TypeError, NameError, AttributeError) as error:
            raise ConfigError(f"of({kind_name(kind)}): {error}; {_advice(error)}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        self._forget()
        return super().__reduce__()

    def _forget(self) -> None:
        """Delete what msgspec has put into the classes: it cannot be pickled, and a class of a script has to be."""
        for each in _inside(self._info, set()):
            kind = getattr(each, "cls", None)
            if kind is not None and _CACHE in vars(kind):
                delattr(kind, _CACHE)

    def deserialize_column(self, column: Sequence[bytes | None]) -> list[T | None]:
        if self.refuses_extra:
            return super().deserialize_column(column)
        decode = self._decoder.decode
        return [None if data is None else decode(data) for data in column]

    def _write(self, value: T) -> bytes:
        return self._encoder.encode(value)

    def _read(self, data: bytes) -> T:
        value: T = self._decoder.decode(data)
        if self.refuses_extra and (path := unknown_field(self._info, msgspec.json.decode(data))):
            raise msgspec.ValidationError(f"Object contains unknown field - at `$.{path}`")
        return value

    def _said(self, error: Exception) -> str:
        match = _AT.match(str(error))
        message, path = match.groups() if match else (str(error), None)
        message = message.replace("`", "'").replace(", got ", ", found ")
        return f"{path}: {message}" if path else message

    def json_schema(self) -> Schema:
        schema = msgspec.json.schema(self.kind)
        self._forget()  # here, because this is the last question about the type when a serde is made
        return schema


def _inside(part: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a type as msgspec describes it, and all types inside it, each once."""
    if isinstance(part, tuple):
        for each in part:
            yield from _inside(each, seen)
    elif isinstance(part, msgspec.inspect.Field):
        yield from _inside(part.type, seen)
    elif isinstance(part, msgspec.inspect.Type) and id(part) not in seen:
        seen.add(id(part))
        yield part
        for name in part.__struct_fields__:
            yield from _inside(getattr(part, name), seen)


def _advice(error: Exception) -> str:
    if isinstance(error, NameError):
        return "name types that the module has at its top, where the class is declared"
    return (
        "expected a dataclass, NamedTuple, TypedDict, enum, msgspec.Struct or pydantic model, or a list, dict or the "
        "like of them"
    )
