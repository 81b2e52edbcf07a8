"""WrappingSerde: the base of serdes that are made of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, TypeVar

from .serde import Serde
from .support.written_forms import parts_of_form

T = TypeVar("T")


class WrappingSerde(Serde[T]):
    """A serde that is made of others, its attributes: what it is told, they are told as well.

    Override `written_form` where an attribute that is no serde changes the bytes.

    >>> from penstock.serde import StrSerde
    >>> class Listed(WrappingSerde[list[str]]):
    ...     def __init__(self, each):
    ...         self.each = each
    ...     def serialize(self, value):
    ...         return b",".join(map(self.each.serialize, value))
    ...     def deserialize(self, data):
    ...         return list(map(self.each.deserialize, data.split(b",")))
    >>> Listed(StrSerde()).written_form()
    'Listed(penstock.serde.StrSerde)'
    """

    def configure(self, config: Mapping[str, Any]) -> Serde[T]:
        """Return a copy with the serdes for an application inside."""
        return self._with(lambda inner: inner.configure(config))

    def bind(self, topic: str, *, is_key: bool) -> Serde[T]:
        """Return a copy with the serdes for one topic inside."""
        return self._with(lambda inner: inner.bind(topic, is_key=is_key))

    def for_values(self) -> Serde[T]:
        """Return a copy with the serdes for values inside."""
        return self._with(lambda inner: inner.for_values())

    def _with(self, change: Callable[[Serde[Any]], Serde[Any]]) -> Serde[T]:
        made = copy(self)
        for name, inner in self._inner():
            setattr(made, name, change(inner))
        return made

    def written_form(self) -> str:
        """Return the name of the class, with the written forms of the serdes inside."""
        name = vars(type(self)).get("saved_name", type(self).__name__)
        return f"{name}({', '.join(inner.written_form() for _, inner in self._inner())})"

    def prepare(self, *, writes: bool) -> None:
        """Prepare the serdes inside."""
        for _, inner in self._inner():
            inner.prepare(writes=writes)

    def unreadable(self, form: str) -> str:
        """Return why one of the serdes inside cannot read its part; see `Serde.unreadable`."""
        found = self._of_parts(form, lambda inner, part: inner.unreadable(part))
        return super().unreadable(form) if found is None else found

    def unfindable(self, form: str) -> str:
        """Return why one of the serdes inside writes its part otherwise; see `Serde.unfindable`."""
        found = self._of_parts(form, lambda inner, part: inner.unfindable(part))
        return super().unfindable(form) if found is None else found

    def _of_parts(self, form: str, ask: Callable[[Serde[Any], str], str]) -> str | None:
        """Return what the serdes inside say of their parts of `form`; None for the form of another serde."""
        now = self.written_form()
        if form == now:
            return ""
        name, parts = parts_of_form(form)
        inner = [each for _, each in self._inner()]
        if name != parts_of_form(now)[0] or len(parts) != len(inner) or len(parts_of_form(now)[1]) != len(inner):
            return None
        return "; ".join(filter(None, map(ask, inner, parts)))

    def _inner(self) -> Iterator[tuple[str, Serde[Any]]]:
        return ((name, each) for name, each in vars(self).items() if isinstance(each, Serde))
