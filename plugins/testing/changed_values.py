"""FindsMisuse: wraps the processors of a test, and finds what they do in silence: with values, and in other threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

from penstock import (
    Application,
    Processor,
    ProcessorContext,
    ProcessorWrapper,
    Record,
    TopologyError,
    ValueTransformer,
    ValueTransformerContext,
    WrappingProcessor,
    WrappingTransformer,
)
from penstock.support.own_copy import IMMUTABLE, own_copy

_READS = ("get", "fetch", "fetch_session")
"""The methods of stores that return one value."""

_log = logging.getLogger("penstock.testing")


@dataclass
class Misuse:
    """What processors did, a sentence for each node.

    `changed_values`: values of records changed in place. `not_put`: values of stores changed and not put, which may be
    meant. `elsewhere`: records forwarded in another thread than `thread`, which runs tasks.
    """

    changed_values: list[str] = field(default_factory=list)
    not_put: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    thread: int = 0


class FindsMisuse:
    """A `processor_wrapper` that adds to `found` what it finds.

    `inner` is the wrapper of the application itself. Operators are left alone: what the functions of the DSL's verbs
    get is theirs.
    """

    def __init__(self, inner: ProcessorWrapper | None, found: Misuse) -> None:
        self._inner = inner
        self._found = found

    @classmethod
    def in_application(cls, application: Application, found: Misuse) -> Application:
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
    def __init__(self, node: str, inner: Processor, found: Misuse) -> None:
        super().__init__(inner)
        self.forwards_each = inner.forwards_each
        self._node, self._found = node, found
        self._reads = _Reads(node, found)

    def bind(self, context: ProcessorContext) -> Callable[[Record], Any]:
        self._reads.watch(context)
        forward = context.forward

        def forward_here(record: Record, to: str | None = None) -> None:
            if get_ident() != self._found.thread:
                self._found.elsewhere.append(
                    f"node {self._node!r} forwards a record in another thread than the one that runs its task: it "
                    "would be part of any commit, or of none. Wait for what other threads compute, in process or in a "
                    "punctuator, and forward there"
                )
                raise TopologyError(self._found.elsewhere[-1])
            forward(record, to)

        forward_here.__qualname__ = "forward"  # its name in Python's own errors
        context.forward = forward_here  # type: ignore[method-assign]
        return super().bind(context)

    def process(self, record: Record) -> None:
        value = record[1]
        before = _copy_to_compare(value)
        super().process(record)
        _note_change(self._node, before, value, self._found.changed_values)
        self._reads.end()


class _WatchedTransformer(WrappingTransformer):
    def __init__(self, node: str, inner: ValueTransformer, found: Misuse) -> None:
        super().__init__(inner)
        self._node, self._found = node, found
        self._reads = _Reads(node, found)

    def init(self, context: ValueTransformerContext) -> None:
        self._reads.watch(context)
        super().init(context)

    def transform(self, key: Any, value: Any) -> Any:
        before = _copy_to_compare(value)
        made = super().transform(key, value)
        _note_change(self._node, before, value, self._found.changed_values)
        self._reads.end()
        return made


class _Reads:
    """The values that a node has read from stores while it processes a record, and has not written since."""

    def __init__(self, node: str, found: Misuse) -> None:
        self._node, self._found = node, found
        self._values: dict[str, list[tuple[Any, Any]]] = {}
        """By store: a copy, and the value itself."""

    def watch(self, context: ValueTransformerContext) -> None:
        """Let the stores that `context` returns be watched."""
        get_store = context.get_store
        context.get_store = lambda name: _WatchedStore(get_store(name), name, self)  # type: ignore[method-assign]

    def note(self, store: str, value: Any) -> None:
        """Note a value that a store returned."""
        if (before := _copy_to_compare(value)) is not None:
            self._values.setdefault(store, []).append((before, value))

    def forget(self, store: str) -> None:
        """Forget what a store returned: something was written to it, and perhaps that."""
        self._values.pop(store, None)

    def end(self) -> None:
        """Add what has changed to what was found."""
        for store, values in self._values.items():
            said = (
                f"node {self._node!r} changes a value that store {store!r} returned, and does not put it: the store "
                "keeps what it had. Put the changed value, or change a copy"
            )
            if said not in self._found.not_put and not all(_are_equal(*each) for each in values):
                self._found.not_put.append(said)
                _log.warning("%s", said)
        self._values.clear()


class _WatchedStore:
    """A store of which what is read is noted."""

    def __init__(self, store: Any, name: str, reads: _Reads) -> None:
        self._store, self._name, self._reads = store, name, reads

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._store)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*given: Any, **options: Any) -> Any:
            if name not in _READS:
                self._reads.forget(self._name)
            value = found(*given, **options)
            if name in _READS:
                self._reads.note(self._name, value)
            return value

        return call


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
