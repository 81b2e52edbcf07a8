"""RowSerde: the serdes of rows that the engine and the DSL's verbs keep in stores of their own."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from struct import error as StructError
from typing import Any, TypeVar, cast

from ..errors import SerdeError
from ..serde import Serde, WrappingSerde
from ..support.text_form import from_json, to_json

T = TypeVar("T", bound=tuple[Any, ...])


class RowSerde(WrappingSerde[T]):
    """A tuple or NamedTuple of a verb's own; in the text form each part is shown by its own serde.

    >>> from penstock.plugins.dsl.operators.waiting import TimedKeySerde
    >>> from penstock.serdes import of
    >>> serde = TimedKeySerde(of(list[int]))
    >>> serde.to_json((5, [1])), serde.from_json({"!tuple": [5, [1]]})
    ({'!tuple': [5, [1]]}, (5, [1]))
    """

    fields: tuple[str, ...] = ()
    """The names of a NamedTuple's parts, which are shown as an object; a tuple has none."""

    def row(self, parts: Sequence[Any]) -> T:
        """Return the value that has these parts."""
        made: Any = tuple(parts)
        return cast(T, made)

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        """Return by place the serdes of parts that have one; `parts` without one are as in the value."""
        raise NotImplementedError

    def to_json(self, value: T) -> Any:
        serdes = self.serdes(value)
        shown = [
            to_json(each) if each is None or at not in serdes else serdes[at].to_json(each)
            for at, each in enumerate(value)
        ]
        return dict(zip(self.fields, shown, strict=True)) if self.fields else {"!tuple": shown}

    def from_json(self, data: Any) -> T:
        return self._read(data, lambda serde, part: serde.from_json(part))

    def key_from_json(self, data: Any) -> T:
        return self._read(data, lambda serde, part: serde.key_from_json(part))

    def _read(self, data: Any, read: Callable[[Serde[Any], Any], Any]) -> T:
        raw = self._parts(data) if isinstance(data, dict) else None
        if not isinstance(raw, list):
            what = f"an object with {', '.join(self.fields)}" if self.fields else "a !tuple"
            raise SerdeError(f"{type(self).__name__}: expected {what}, found {reprlib.repr(data)}")
        serdes = self.serdes(raw)
        parts = [
            from_json(each) if each is None or at not in serdes else read(serdes[at], each)
            for at, each in enumerate(raw)
        ]
        try:
            return self.deserialize(self.serialize(self.row(parts)))
        except (ValueError, TypeError, AttributeError, StructError) as error:
            raise SerdeError(f"{type(self).__name__}: {reprlib.repr(data)} has a part of another type") from error

    def _parts(self, data: Mapping[str, Any]) -> Any:
        if not self.fields:
            return data.get("!tuple")
        return [data[name] for name in self.fields] if data.keys() == set(self.fields) else None
