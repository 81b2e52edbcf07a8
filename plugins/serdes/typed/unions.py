"""Unions of which pydantic chooses an alternative by the value: which ones may take what another one wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

_NUMBERS = frozenset({"integer", "number", "boolean"})
_TIMES = frozenset({"date-time", "date", "time", "duration"})
_NOT_FINITE = frozenset({"nan", "snan", "inf", "infinity"})
_UUID_DIGITS = 32


def may_take(rival: Schema, old: Schema, *, is_before: bool) -> bool:
    """Return whether pydantic may read a value that the alternative `old` of a union wrote as one of `rival`.

    It prefers the type that needs no conversion, then the first one; but a UUID to text, a list to a set, and to the
    member of an enum all that has its JSON. Schemas do not tell an enum from a `Literal`. `is_before`: `rival` is in
    front of `old`.
    """
    members, kind, other = members_of(old), old.get("type"), rival.get("type")
    if members is not None:
        return any(_may_take_member(rival, each) for each in members)
    others = members_of(rival)
    if kind is None:
        return is_before or others is not None
    if others is not None:
        numbers = kind in ("number", "boolean") and is_before and any(isinstance(each, int | float) for each in others)
        return numbers or (old.get("format") == "binary" and any(isinstance(each, str) for each in others))
    if other is None:
        return is_before and ("format" in old or kind in ("object", "array"))
    if other == kind == "string":
        return is_before or (rival.get("format") == "uuid" and "format" not in old)
    return other == kind and kind in ("object", "array") and (is_before or "uniqueItems" in old)


def members_of(schema: Schema) -> list[Any] | None:
    """Return the values that a schema names; None if it names a type."""
    found: list[Any] | None = [schema["const"]] if "const" in schema else schema.get("enum")
    return found


def _may_take_member(rival: Schema, member: Any) -> bool:
    others, kind, form = members_of(rival), rival.get("type"), rival.get("format")
    if others is not None:
        return member in others
    if kind is None:
        return True
    if isinstance(member, int | float):
        return kind in _NUMBERS or form in _TIMES
    if not isinstance(member, str) or kind != "string":
        return False
    has_digits = any(each.isdigit() for each in member) or len(member) >= _UUID_DIGITS
    return form in (None, "binary") or has_digits or member.lower().lstrip("+-") in _NOT_FINITE
