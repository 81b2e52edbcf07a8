"""FindsChangedValues: wraps the processors of a test, and finds those that change the value that they got in place."""

from __future__ import annotations

from copy import copy
from typing import Any

from penstock import (
    Application,
    Processor,
    ProcessorWrapper,
    Record,
    ValueTransformer,
    WrappingProcessor,
    WrappingTransformer,
)
from penstock.support.own_copy import IMMUTABLE, own_copy


class FindsChangedValues:
    """A `processor_wrapper` that adds to `found` what it finds, a sentence for each node.

    `inner` is the wrapper of the application itself. Operators are left alone: what the functions of the DSL's verbs
    get is theirs.
    """

    def __init__(self, inner: ProcessorWrapper | None, found: list[str]) -> None:
        self._inner = inner
        self._found = found

    @classmethod
    def in_application(cls, application: Application, found: list[str]) -> Application:
        """Return a copy of an application whose processors are wrapped, too."""
        made, settings = copy(application), copy(application.settings)
        object.__setattr__(settings, "processor_wrapper", cls(settings.processor_wrapper, found))
        made.settings = settings
        return made

    def __call__(self, node: str, made: Any) -> Any:
        """Return the processor of a node, wrapped."""
        if self._inner is not None:
            made = self._inner(node, made)
        if isinstance(made, Processor) and not made.takes_tuples:
            return _Watched(node, made, self._found)
        return _WatchedTransformer(node, made, self._found) if isinstance(made, ValueTransformer) else made


class _Watched(WrappingProcessor):
    def __init__(self, node: str, inner: Processor, found: list[str]) -> None:
        super().__init__(inner)
        self.forwards_each = inner.forwards_each
        self._node, self._found = node, found

    def process(self, record: Record) -> None:
        value = record[1]
        before = _copy_to_compare(value)
        super().process(record)
        _note_change(self._node, before, value, self._found)


class _WatchedTransformer(WrappingTransformer):
    def __init__(self, node: str, inner: ValueTransformer, found: list[str]) -> None:
        super().__init__(inner)
        self._node, self._found = node, found

    def transform(self, key: Any, value: Any) -> Any:
        before = _copy_to_compare(value)
        made = super().transform(key, value)
        _note_change(self._node, before, value, self._found)
        return made


def _copy_to_compare(value: Any) -> Any:
    """Return a copy that is equal as long as the value stays; None where there is no such copy."""
    if type(value) in IMMUTABLE:
        return None
    before = own_copy(value)
    return before if before is not value and _are_equal(before, value) else None


def _note_change(node: str, before: Any, value: Any, found: list[str]) -> None:
    if before is None or _are_equal(before, value):
        return
    said = (
        f"node {node!r} changes the value that it got in place. Its siblings have copies, but a wrapper around it has "
        "the same object, and so has a test that calls it: forward a new value, record.with_value(...)"
    )
    if said not in found:
        found.append(said)


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # of arrays, for instance; what cannot be compared is not said to have changed
        return True
