"""`of`: the serde of a program's own type."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, overload

from penstock import ConfigError, Serde

from .typed.base import TypedSerde
from .typed.shipped import is_model, prepare_classes

T = TypeVar("T")


@overload
def of(kind: type[T], *, extra: Literal["ignore", "refuse"] = "ignore") -> Serde[T]: ...
@overload
def of(kind: Any, *, extra: Literal["ignore", "refuse"] = "ignore") -> Serde[Any]: ...
def of(kind: Any, *, extra: Literal["ignore", "refuse"] = "ignore") -> Serde[Any]:
    """Return the serde of a type: its values are JSON that other languages read.

    `kind` is a dataclass, a NamedTuple, a TypedDict, an enum, a msgspec.Struct, a pydantic model, or a list, dict or
    union of such. Their fields may have all of these types, and numbers, text, bytes, dates, Decimal and UUID.
    `extra`: whether fields in the JSON that the type does not have are ignored, or refused.

    Raises ConfigError for a type that cannot be written as JSON.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Order:
    ...     user: str
    ...     amount: int = 1
    >>> of(Order).serialize(Order("alice", 3))
    b'{"user":"alice","amount":3}'
    >>> of(Order).deserialize(b'{"user": "bob"}')
    Order(user='bob', amount=1)
    """
    if extra not in ("ignore", "refuse"):
        raise ConfigError(f"of: extra: expected 'ignore' or 'refuse', found {extra!r}")
    if isinstance(kind, str):
        raise ConfigError(f"of: expected a type, found the text {kind!r}: pass the class itself")
    return typed_serde(kind, refuses_extra=extra == "refuse")


def typed_serde(kind: Any, *, refuses_extra: bool = False) -> TypedSerde[Any]:
    """Return the serde that `of` returns. Raises ConfigError for a type that cannot be written as JSON."""
    classes = prepare_classes(kind, "of")
    if any(map(is_model, classes)):
        from .typed.models import ModelSerde

        if old := [each for each in classes if is_model(each) and not hasattr(each, "__pydantic_core_schema__")]:
            raise ConfigError(
                f"of: {old[0].__qualname__} is a model of Pydantic 1 (pydantic.v1): declare it with BaseModel or "
                "dataclass of Pydantic 2"
            )
        return ModelSerde(kind, refuses_extra=refuses_extra)
    from .typed.standard import StandardSerde

    return StandardSerde(kind, refuses_extra=refuses_extra)
