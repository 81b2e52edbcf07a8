"""JSON schemas of types: their essence, and what has changed so that rows of the old one are not read by the new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from .unions import Schema, may_take, members_of

_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
DIGITS = ("maxDigits", "maxDecimalPlaces", "maxWholeDigits")
"""Keywords of the text of a Decimal, which JSON schemas do not have."""
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", *DIGITS)
ZONE = "$zone"
"""Keyword of the text of a datetime or time that must have a time zone, or must have none."""
_SAME = ("format", ZONE, "contentEncoding", "uniqueItems", "multipleOf")
_ONE_OF = ("anyOf", "oneOf")
_PARTS = ("items", "additionalProperties", "propertyNames", "keys")
_BY_NAME = ("properties", "$defs")
_VALUES = frozenset({"default", "const", "enum", "examples"})
OMITTED = "omitted"
"""Keyword of a field with this default, which rows leave out."""
ORDER = "$order"
"""Keyword of an object: the fields that are always written, in the order in which they are."""
_KEPT = frozenset({"type", "enum", "const", "required", "pattern", "$ref", OMITTED, ORDER, *_LOWER, *_UPPER, *_SAME})
_PATTERNS = "$patterns"
"""Marks an essence that has the patterns of its texts, which older versions left out."""
_NUMBERS = "$numbers"
"""Marks a type whose floats and Decimals are written as such where a value has an int, which older versions wrote as an
int."""

_DECIMALS = "$decimals"
"""Marks a type in which the text of a Decimal beside its number has a format, which older versions left out."""
_DEFAULTS = "$defaults"
"""Marks a type whose keys have the defaults of absent fields, which older versions left out of keys that were read."""
_TIMES = "$times"
"""Marks an essence that tells the text of datetimes and times from other text, which older versions did not."""
_SETS = "$sets"
"""Marks a type with sets inside of sets, which older versions wrote in any order."""


def essence(schema: Schema) -> dict[str, Any]:
    """Return the keywords of a schema that say which values fit: no titles, descriptions or defaults.

    The keyword `keys` of an object is the schema of a dict's keys, which JSON's own keyword for them has only of text.
    """
    made = _essence(schema)
    if _has_text(made):
        made[_PATTERNS] = True
    return made


def of_decimals(essence: dict[str, Any]) -> dict[str, Any]:
    """Return an essence marked as one that says which text beside a number is that of a Decimal."""
    if any(_has_number_or_text(each) for each in _with_definitions(essence, essence.get("$defs", {}))):
        essence[_DECIMALS] = True
    return essence


def of_times(essence: dict[str, Any]) -> dict[str, Any]:
    """Return an essence marked as one in which the text of each datetime and time has its format."""
    if _has_text(essence):
        essence[_TIMES] = True
    return essence


def _has_number_or_text(schema: Schema) -> bool:
    return {"number", "string"} <= {each.get("type") for each in _alternatives(schema)}


def _with_decimals(before: Schema) -> Schema:
    """Return an older essence in which the text beside a number is taken for that of a Decimal."""
    made: Schema = deepcopy(dict(before))
    for each in _with_definitions(made, made.get("$defs", {})):
        if _has_number_or_text(each):
            parts: list[Any] = _alternatives(each)
            number = next(other for other in parts if other.get("type") == "number")
            for text in parts:
                if text.get("type") == "string":
                    text.update({"format": "decimal", **dict.fromkeys(DIGITS, 0), **number, "type": "string"})
    return made


def of_written(
    essence: dict[str, Any], *, ints_become_numbers: bool, sorts_sets: bool, keys_have_defaults: bool
) -> dict[str, Any]:
    """Return an essence with what says which bytes its values have, so that keys are found."""
    for each in _all(essence):
        if "properties" in each:
            each.setdefault(ORDER, list(each["properties"]))
    if ints_become_numbers:
        essence[_NUMBERS] = True
    if sorts_sets:
        essence[_SETS] = True
    if keys_have_defaults:
        essence[_DEFAULTS] = True
    return essence


def _all(made: Schema) -> Iterator[Any]:
    """Yield an essence and each schema inside it."""
    yield made
    parts = [made.get(name) for name in _PARTS]
    parts += [each for name in _BY_NAME for each in made.get(name, {}).values()]
    parts += [each for name in (*_ONE_OF, "prefixItems") for each in made.get(name, ())]
    for each in parts:
        if isinstance(each, dict):
            yield from _all(each)


def _sorts_fields(essence: Schema) -> bool | None:
    """Return whether a type has a dict whose keys are no text: all its fields are then written in order.

    None for a form of an older version, which says nothing about the keys of a dict.
    """
    dicts = [each for each in _all(essence) if each.get("type") == "object" and "properties" not in each]
    if not all("keys" in each for each in dicts):
        return None
    keys = [each["keys"] for each in dicts]
    return any(each.get("type") != "string" or any(name in each for name in (*_SAME, "enum")) for each in keys)


def _has_optional(schema: Schema) -> bool:
    return not schema.get("properties", {}).keys() <= {*schema.get("required", ())}


def _is_unsorted(schema: Schema) -> bool:
    order = schema.get(ORDER, [])
    return bool(order != sorted(order))


def _has_text(part: Any) -> bool:
    return _has(part, "type", "string")


def _has(part: Any, name: str, value: str) -> bool:
    """Return whether a schema, or one inside it, has a keyword with a value."""
    if isinstance(part, Mapping):
        return part.get(name) == value or any(_has(each, name, value) for each in part.values())
    return isinstance(part, list) and any(_has(each, name, value) for each in part)


def _essence(schema: Schema) -> dict[str, Any]:
    made: dict[str, Any] = {name: each for name, each in schema.items() if name in _KEPT}
    for name in _BY_NAME:
        if name in schema:
            made[name] = {each: _essence(inner) for each, inner in schema[name].items()}
    for name in (*_ONE_OF, "prefixItems"):
        if name in schema:
            made[name] = [_essence(inner) for inner in schema[name]]
    for part, inner in zip(made.get("prefixItems", ()), schema.get("prefixItems", ()), strict=True):
        if "title" in inner:  # the name of a NamedTuple's field
            part["title"] = inner["title"]
    for name in _PARTS:
        if name in schema:
            made[name] = _essence(schema[name]) if isinstance(schema[name], Mapping) else schema[name]
    for name in ("required", "enum"):
        if name in made:
            made[name] = sorted(made[name], key=repr)
    return made


def closed(schema: Any) -> Any:
    """Return the schema of a type whose objects have the declared fields and no others.

    A registry takes a new optional field only then: other fields of an open schema may have been written under its
    name, with another type. Confluent's Java serializers make closed schemas of classes, too.

    >>> closed({"type": "object", "properties": {"a": {"type": "integer"}}})
    {'type': 'object', 'properties': {'a': {'type': 'integer'}}, 'additionalProperties': False}
    """
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {name: each if name in _VALUES else closed(each) for name, each in schema.items()}
    for name in _BY_NAME:
        if name in schema:
            made[name] = {each: closed(inner) for each, inner in schema[name].items()}
    if "properties" in schema:
        made.setdefault("additionalProperties", False)
    return made


def changes(
    before: Schema, now: Schema, *, ignores_extra: bool = False, of_keys: bool = False, chooses_by_value: bool = False
) -> list[str]:
    """Return in words why values that fit the essence `before` may not fit `now`, or would lose a field.

    Optional fields may be new, types may be wider: an integer becomes a number, a value may be null, an enum gets
    members. A field with a default may be absent in rows that are older than the field, so its default must stay.
    `ignores_extra`: whether an object whose schema says nothing about fields that are not declared is read without
    them. JSON's own rule is that it has them. `of_keys`: the essences are those of `of_written`, and also what gives a
    value other bytes is a change. `chooses_by_value`: of a union's alternatives the reader takes the one that fits a
    value best, as pydantic does, so a new one may take what another one wrote.

    >>> old = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    >>> changes(old, {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    ["field 'a' was integer and is string"]
    >>> changes(old, {"type": "object", "properties": {"a": {"type": "number"}, "b": {}}, "required": ["a"]})
    []
    """
    if _DECIMALS in now and _DECIMALS not in before:
        before = _with_decimals(before)
    return list(dict.fromkeys(_Comparison(before, now, ignores_extra, of_keys, chooses_by_value).of_all(before, now)))


_MISSING = object()


class _Comparison:
    """The comparison of two schemas with the definitions that their references name."""

    def __init__(self, before: Schema, now: Schema, ignores_extra: bool, of_keys: bool, chooses_by_value: bool) -> None:
        self._of_keys = of_keys
        self._chooses_by_value = chooses_by_value
        self._has_extra = not ignores_extra
        self._before = before.get("$defs", {})
        self._now = now.get("$defs", {})
        self._inside: set[tuple[str, str]] = set()
        self._found: dict[tuple[str, str], list[str]] = {}
        self._met_itself = 0
        self._knows_patterns = _PATTERNS in before
        self._knows_times = _TIMES in before or _TIMES not in now

    def of_all(self, before: Schema, now: Schema) -> Iterator[str]:
        """Yield each change."""
        yield from self.of("", before, now)
        has_numbers = _has(before, "type", "number") or _has(before, "format", "decimal")
        if self._of_keys and has_numbers and _NUMBERS in now and _NUMBERS not in before:
            yield "an int where a float or a Decimal is declared was written as an int, and is written as that now"
        if self._of_keys and _DEFAULTS in now and _DEFAULTS not in before and any(map(_has_optional, _all(before))):
            yield "a field that was absent where a key was read was left out of the key, and is written now"
        if self._of_keys and before.get(_SETS) != now.get(_SETS):
            yield "sets inside of sets are written in another order than before"
        sorts, sorted_before = _sorts_fields(now), _sorts_fields(before)
        if self._of_keys and sorts is not sorted_before and None not in (sorts, sorted_before):
            order = next((each[ORDER] for each in (*_all(before), *_all(now)) if _is_unsorted(each)), None)
            if order is not None:
                yield (
                    f"a dict whose keys are no text is {'new' if sorts else 'gone'}: with one, fields are "
                    f"written in the order of their names, and not as declared: {', '.join(order)}"
                )

    def of(self, path: str, before: Schema, now: Schema) -> list[str]:
        """Return each change at `path` and below; of two classes that were compared before, as of there."""
        pair: tuple[str, str] = before.get("$ref", ""), now.get("$ref", "")
        if not all(pair):
            return list(self._of_alternatives(path, before, now))
        if pair in self._found:
            return self._found[pair]
        if pair in self._inside:  # a type that contains itself
            self._met_itself += 1
            return []
        self._inside.add(pair)
        met = self._met_itself
        each = self._of_alternatives(path, before, now)
        found = list(dict.fromkeys(each))  # of a class that is used twice they come twice
        self._inside.discard(pair)
        if found or met == self._met_itself:  # else it may depend on a class around it, which is not compared yet
            self._found[pair] = found
        return found

    def _of_alternatives(self, path: str, before: Schema, now: Schema) -> Iterator[str]:
        old, new = _resolved(before, self._before), _resolved(now, self._now)
        were, are = _alternatives(old), _alternatives(new)
        if len(were) == len(are) == 1:
            yield from self._of_one(path, old, new)
            return
        were, are = were if len(were) > 1 else [before], are if len(are) > 1 else [now]
        for index, each in enumerate(were):
            if any(not self.of(path, each, other) for other in are):
                if self._chooses_by_value and "oneOf" not in new:
                    yield from self._of_rivals(path, index, were, are)
                continue
            alike = [other for other in are if self._kind(each, self._before) == self._kind(other, self._now)]
            if len(alike) > 1:
                alike = [other for other in alike if self._tags(each, self._before) == self._tags(other, self._now)]
            if len(alike) == 1:
                yield from self.of(path, each, alike[0])
            else:
                yield f"{_field(path)} was {_shown(before, self._before)} and is {_shown(now, self._now)}"

    def _of_rivals(self, path: str, index: int, were: list[Schema], are: list[Schema]) -> Iterator[str]:
        """Yield which alternative of a union may take the values that one of before has written."""
        each = were[index]
        fitting = [place for place, other in enumerate(are) if not self.of(path, each, other)]
        old, new = (
            [_resolved(one, found) for one in given] for given, found in ((were, self._before), (are, self._now))
        )
        own = next((place for place in fitting if _is_same(each, are[place])), None)
        alike = [place for place in fitting if new[place].get("type") == old[index].get("type")] or fitting
        is_sure, own = own is not None or len(alike) == 1, alike[0] if own is None else own
        for place, rival in enumerate(new):
            was = next((number for number, one in enumerate(were) if _is_same(one, are[place])), None)
            is_new = was is None or (was < index) != (place < own)
            if place != own and is_new and may_take(rival, old[index], is_before=place < own or not is_sure):
                yield f"{_field(path)} was {_shown(each, self._before)}, and may be read as {_shown(rival, self._now)}"
                return

    @staticmethod
    def _kind(schema: Schema, definitions: Schema) -> Any:
        return _resolved(schema, definitions).get("type")

    @staticmethod
    def _tags(schema: Schema, definitions: Schema) -> dict[str, Any]:
        """Return the fields that can have one value only: they name a class of a union."""
        fields = {name: members_of(each) for name, each in _resolved(schema, definitions).get("properties", {}).items()}
        return {name: each for name, each in fields.items() if each is not None and len(each) == 1}

    def _of_one(self, path: str, before: Schema, now: Schema) -> Iterator[str]:
        members, allowed = members_of(before), members_of(now)
        if allowed is not None and members is not None:
            if gone := [each for each in members if each not in allowed]:
                yield f"{_field(path)} can no longer be {', '.join(map(repr, gone))}"
            return
        kind, becomes = before.get("type"), now.get("type")
        if members is not None:
            kind = "string" if all(isinstance(each, str) for each in members) else kind
        same = all(before.get(name) == now[name] for name in _SAME if name in now)
        same = same or (not self._knows_times and members is None and _may_be_time(before, now))
        same = same and _is_base64(before) == _is_base64(now)  # its text is not that of the bytes
        is_wider = (kind, becomes) == ("integer", "number") and not self._of_keys
        if allowed is not None or not same or not (becomes in (None, kind) or is_wider):
            yield f"{_field(path)} was {_shown(before, self._before)} and is {_shown(now, self._now)}"
            return
        if self._of_keys and becomes is None and any(map(_is_unsorted, _with_definitions(before, self._before))):
            yield f"{_field(path)} had fields, and may be anything, in which they are written in order"
        for names, is_tighter in ((_LOWER, float.__gt__), (_UPPER, float.__lt__)):
            for name in names:
                if name in now and (name not in before or is_tighter(float(now[name]), float(before[name]))):
                    yield f"{_field(path)} has {name} {now[name]} and had {before.get(name, 'none')}"
        knows_pattern = self._knows_patterns or members is not None
        if knows_pattern and now.get("pattern") not in (None, before.get("pattern")):
            had = repr(before["pattern"]) if "pattern" in before else "none"
            yield f"{_field(path)} has the pattern {now['pattern']!r} and had {had}"
        if becomes == "object":
            yield from self._of_object(path, before, now)
        elif becomes == "array":
            yield from self._of_array(path, before, now)

    def _of_object(self, path: str, before: Schema, now: Schema) -> Iterator[str]:
        had, has = before.get("properties"), now.get("properties")
        if has is None:
            values = _part(now, "additionalProperties")
            keys = _part(now, "keys")
            if had is not None and (lost := [name for name in had if not _may_be_key(name, keys)]):
                yield f"{_field(path)} had fields, and {lost[0]!r} is no key of the dict, whose keys are " + _shown(
                    _resolved(keys, self._now), self._now
                )
                return
            if had is not None and self._of_keys and before.get(ORDER) != sorted(before.get(ORDER, ())):
                yield f"{_field(path)} had fields, and is a dict, whose keys are written in order"
            for each in (had or {"": _part(before, "additionalProperties")}).values():
                yield from self.of(f"{path}[...]", each, values)
            name = "keys" if "keys" in before and "keys" in now else "propertyNames"
            yield from self.of(f"{path} (keys)".lstrip(), _part(before, name), _part(now, name))
            return
        if had is None:
            yield f"{_field(path)} was a dict and has fields"
            return
        for name, each in had.items():
            if name in has:
                yield from self.of(_below(path, name), each, has[name])
                if OMITTED in each and each[OMITTED] != has[name].get(OMITTED, _MISSING):
                    yield (
                        f"{_field(_below(path, name))} had the default {each[OMITTED]!r}, which rows leave out: keep it"
                    )
            else:
                yield f"{_field(_below(path, name))} is gone: keep it, with a default if nothing sets it any more"
        if self._of_keys:
            yield from self._of_bytes(path, before, now)
        for name in now.get("required", ()):
            if name not in had:
                yield f"{_field(_below(path, name))} is new and has no default: give it one"
            elif name not in before.get("required", ()):
                yield f"{_field(_below(path, name))} had a default, which older rows may need: give it one"
        extra, has_extra = before.get("additionalProperties"), now.get("additionalProperties", self._has_extra)
        if extra and has_extra is False:
            yield f"{_field(path)} may have fields that are not declared, and they would be lost: allow them"
        elif isinstance(extra, Mapping) and isinstance(has_extra, Mapping):
            yield from self.of(f"{path}[...]", extra, has_extra)

    def _of_bytes(self, path: str, before: Schema, now: Schema) -> Iterator[str]:
        """Yield why an object is written in other bytes, though its fields are read."""
        had, has, knows = before["properties"], now["properties"], ORDER in before
        for name, each in has.items():
            if name not in had and name in now[ORDER] and OMITTED not in each:
                yield f"{_field(_below(path, name))} is new, and keys from before do not have it"
            elif name in had and knows and OMITTED in each and OMITTED not in had[name]:
                yield f"{_field(_below(path, name))} was written where it is {each[OMITTED]!r}, and is left out now"
        was = [each for each in before.get(ORDER, ()) if each in has]
        if knows and was != [each for each in now[ORDER] if each in had]:
            yield f"{_field(path)} had its fields in another order: {', '.join(was)}"

    def _of_array(self, path: str, before: Schema, now: Schema) -> Iterator[str]:
        if self._of_keys and before.get("uniqueItems"):
            gone = _formats(_part(before, "items"), self._before) - _formats(_part(now, "items"), self._now)
            if gone:
                yield f"{_field(path)} is a set, whose elements with {', '.join(sorted(gone))} had another order"
        had, has = before.get("prefixItems"), now.get("prefixItems")
        if (had is None) != (has is None):
            yield f"{_field(path)} was {_shown(before, self._before)} and is {_shown(now, self._now)}"
            return
        if had is None or has is None:
            yield from self.of(f"{path}[]", _part(before, "items"), _part(now, "items"))
            return
        names, now_names = ([each.get("title") for each in fields] for fields in (had, has))
        for index, (name, now_name) in enumerate(zip(names, now_names, strict=False)):
            if name is not None and name != now_name and name in now_names:
                yield f"{_field(f'{path}[{index}]')} was {name!r} and is {now_name!r}: rows have the fields in order"
        for index, (each, other) in enumerate(zip(had, has, strict=False)):
            yield from self.of(f"{path}[{index}]", each, other)
        if self._of_keys and len(has) > len(had):
            yield f"{_field(f'{path}[{len(had)}]')} is new, and keys from before do not have it"
        if "maxItems" not in now:  # else longer rows are refused
            for index in range(len(has), len(had)):
                yield f"{_field(f'{path}[{index}]')} is gone: keep it, with a default if nothing sets it any more"


def _is_same(before: Schema, now: Schema) -> bool:
    """Return whether two alternatives of unions are one class, or one type."""
    return before["$ref"] == now.get("$ref") if "$ref" in before else dict(before) == dict(now)


def _may_be_time(before: Schema, now: Schema) -> bool:
    """Return whether text in an older essence may be that of the datetime or time which is declared now."""
    texts = {"date-time": (None, "date-time"), "time": (None, "time", "partial-time")}
    return before.get("format") in texts.get(now.get("format", ""), ())


def _formats(schema: Schema, definitions: Schema) -> set[str]:
    """Return the formats of texts in a schema whose values are not in the order of their text."""
    found = {each["format"] for each in _with_definitions(schema, definitions) if "format" in each}
    return found - {"date", "uuid"}


def _with_definitions(schema: Schema, definitions: Schema) -> Iterator[Schema]:
    """Yield a schema and each inside it, also those that it refers to, each definition once."""
    waiting, seen = [schema], set[str]()
    while waiting:
        for each in _all(waiting.pop()):
            yield each
            if "$ref" in each and each["$ref"] not in seen:
                seen.add(each["$ref"])
                waiting.append(_resolved(each, definitions))


def _resolved(schema: Schema, definitions: Schema) -> Schema:
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


def _alternatives(schema: Schema) -> list[Schema]:
    for name in _ONE_OF:
        if name in schema:
            return list(schema[name])
    return [schema]


def _may_be_key(name: str, keys: Schema) -> bool:
    """Return whether a field's name fits the schema of the keys of a dict, if it is one of text."""
    if len(several := _alternatives(keys)) > 1:
        return any(_may_be_key(name, each) for each in several)
    members = members_of(keys)
    if members is not None:
        return name in members
    return keys.get("type", "string") == "string" and not any(each in keys for each in _SAME)


def _part(schema: Schema, name: str) -> Schema:
    found = schema.get(name)
    return found if isinstance(found, Mapping) else {}


def _is_base64(schema: Schema) -> bool:
    return "base64" in schema.get("contentEncoding", schema.get("format", ""))


def _below(path: str, name: str) -> str:
    """Return the path of a field."""
    return f"{path}.{name}" if path else name


def _field(path: str) -> str:
    return f"field {path!r}" if path else "the value"


def _shown(schema: Schema, definitions: Schema) -> str:
    """Return a schema in a word or a few, for a message."""
    schema = _resolved(schema, definitions)
    alternatives = _alternatives(schema)
    if len(alternatives) > 1:
        return " or ".join(_shown(each, definitions) for each in alternatives)
    members = members_of(schema)
    if members is not None:
        return "one of " + ", ".join(map(repr, members))
    shown = schema.get("contentEncoding") or schema.get("format") or schema.get("type", "any")
    return "a set" if schema.get("uniqueItems") else "null" if shown == "null" else str(shown)
