"""ModelSerde: pydantic models, and types that contain them, as pydantic writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from penstock import ConfigError
from penstock.support.packages import check_installed, needed

from .base import TypedSerde, kind_name
from .json_schemas import DIGITS, essence, of_decimals
from .set_order import rank
from .unions import Schema

check_installed("a serde of Pydantic models", "pydantic", "pydantic")  # its version, too
with needed("a serde of Pydantic models", "pydantic"):
    from pydantic import PydanticUserError, TypeAdapter, ValidationError
    from pydantic.json_schema import GenerateJsonSchema

T = TypeVar("T")


class ModelSerde(TypedSerde[T]):
    """Values of a type that pydantic validates, by the names (aliases) and the rules of its models.

    Sets and dicts are written in the order that they have in this process, so equal values may have different bytes.
    """

    _chooses_by_value = True

    def __init__(self, kind: Any, *, refuses_extra: bool) -> None:
        try:
            self._adapter: TypeAdapter[T] = TypeAdapter(kind)
            super().__init__(kind, refuses_extra=refuses_extra)
        except (PydanticUserError, NameError, TypeError) as error:
            raise ConfigError(f"of({kind_name(kind)}): pydantic cannot convert it: {error}") from error

    def _write(self, value: T) -> bytes:
        return self._adapter.dump_json(value, by_alias=True, warnings="error")

    def _read(self, data: bytes) -> T:
        if self.refuses_extra:
            return self._adapter.validate_json(data, extra="forbid")
        return self._adapter.validate_json(data)

    def _convert(self, rows: Sequence[Any]) -> list[T | None]:
        validate = self._adapter.validate_python
        extra: Literal["forbid"] | None = "forbid" if self.refuses_extra else None
        return [None if row is None else validate(row, extra=extra) for row in rows]

    def _said(self, error: Exception) -> str:
        if not isinstance(error, ValidationError):
            return str(error)
        wrong = error.errors(include_url=False)[:3]
        return "; ".join(f"{_path(each['loc'])}{each['msg']}, found {each['input']!r}" for each in wrong)

    def json_schema(self) -> Schema:
        return self._adapter.json_schema(by_alias=True, schema_generator=_WithDefaultsInOrder)

    def _essence(self) -> dict[str, Any]:
        return of_decimals(essence(self._adapter.json_schema(by_alias=True, schema_generator=_WithKeys)))


class _WithDefaultsInOrder(GenerateJsonSchema):
    """Puts the defaults of sets in order: a schema with another text is another one for a registry."""

    def encode_default(self, dft: Any) -> Any:
        """Return a default as JSON data."""
        made = super().encode_default(dft)
        return sorted(made, key=rank) if isinstance(dft, set | frozenset) else made


class _WithKeys(GenerateJsonSchema):
    """Adds the schema of a dict's keys, which JSON's own keyword has only of text, and of the text of Decimals.

    Some versions of pydantic say of the text of a Decimal only that it is text.
    """

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of a Decimal: a number, or text of this format with the same bounds."""
        made = super().decimal_schema(schema)
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        whole = None if None in (digits, places) else digits - places
        given = {name: each for name, each in zip(DIGITS, (digits, places, whole), strict=True) if each is not None}
        parts = made.get("anyOf", [made])
        bounds: dict[str, Any] = next((each for each in parts if each.get("type") == "number"), {})
        for each in parts:
            if each.get("type") == "string":
                each.update({**bounds, **given, **each, "format": "decimal"})
        return made

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of a dict. Raises TypeError for keys that pydantic would not read back."""
        key = schema.get("keys_schema", {"type": "any"})
        if not _has_text(key):
            raise TypeError(f"the keys of a dict are text in JSON, so they cannot be {key['type']} values")
        keys = self.generate_inner(key) if "keys_schema" in schema else {}
        return {**super().dict_schema(schema), "keys": keys}


_WITHOUT_TEXT = frozenset(
    ["tuple", "named-tuple", "list", "set", "frozenset", "dict", "none", "model", "dataclass", "typed-dict"]
)


def _has_text(key: Any) -> bool:
    """Return whether some key of a type, as pydantic describes it, is read back from its text."""
    if key["type"] == "literal":
        return any(isinstance(each, str) for each in key["expected"])
    if key["type"] == "enum" and "sub_type" not in key:
        return any(isinstance(each.value, str) for each in key["members"])
    return key["type"] not in _WITHOUT_TEXT


def _path(location: tuple[int | str, ...]) -> str:
    """Return "lines[0].price: " for ("lines", 0, "price")."""
    path = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in location)
    return f"{path.removeprefix('.')}: " if path else ""
