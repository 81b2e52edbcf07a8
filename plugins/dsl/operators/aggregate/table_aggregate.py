"""TableSelect and TableAggregate: groups of a table's rows, and their aggregates; ChangeSerde between the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from penstock import Change, ProcessorContext, Record, Serde, SerdeError
from penstock.operator import Operator, Run, new
from penstock.program.row_serde import RowSerde
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.support.own_copy import own_copy

from ...graph.serdes import KnownSerde, key_of_topic
from ...graph.sources import RepartitionStep
from ...graph.step import Step, Writer
from ..table_store import NotLatest, TableOperator
from .folds import Aggregator

_EXACT = frozenset({str, bytes, int, bool})
"""Types of which equal values have equal bytes."""


@dataclass(kw_only=True, eq=False)
class TableSelect(Operator):
    """Forwards what a group loses, and then what a group gets; both in one record where the group stays (KIP-904).

    `select_key` and `select_value` are functions of key and value. A row without a group key is in no group. Two keys
    are one group if `group_serde` writes the same bytes, as in `topic`, named without the application: 1 and True, and
    1.5 and 1.50 as Decimal, are equal for Python, and are in different partitions.
    """

    select_key: Callable[[Any, Any], Any]
    select_value: Callable[[Any, Any], Any] | None = None
    ignores_older: bool = False
    group_serde: Serde[Any]
    topic: str

    def bind(self, context: ProcessorContext) -> Run:
        forward, ignores_older = context.send, self.ignores_older
        select_key, select_value = self.select_key, self.select_value

        key_bytes = self.group_serde.bind(f"{context.application_id}-{self.topic}", is_key=True).serialize

        def is_same(group: Any, old_group: Any) -> bool:
            kind = type(group)
            if kind in _EXACT and kind is type(old_group):
                return bool(group == old_group)
            try:
                return key_bytes(group) == key_bytes(old_group)
            except Exception:  # the sink below says so
                return False

        def selected(key: Any, value: Any) -> tuple[Any, Any]:
            """Return the group's key and value; both None if the row is in no group."""
            if value is None:
                return (None, None)
            group = select_key(key, value)
            if select_value is not None:
                value = select_value(key, value)
            return (None, None) if group is None or value is None else (group, value)

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            if ignores_older and type(change) is NotLatest:
                return
            group, value = selected(key, change[0])
            old_group, old = selected(key, change[1])
            if group is not None and old_group is not None and is_same(group, old_group):
                forward((group, new(Change, (value, old)), timestamp, headers))
                return
            if old_group is not None:
                forward((old_group, new(Change, (None, old)), timestamp, headers))
            if group is not None:
                forward((group, new(Change, (value, None)), timestamp, headers))

        return run


def group_options(writer: Writer, step: Step, keys: KnownSerde) -> dict[str, Any]:
    """Return the options of the TableSelect of `step` that follow from the settings; `keys`: the serde of groups."""
    topics = [child.names.topic for child in step.children if isinstance(child, RepartitionStep)]
    serde = key_of_topic(keys, writer.settings) or writer.settings.key_serde
    made = resolve_serde(serde, None, f"{step.name}: key_serde", writer.settings.of_plugins)
    return {"group_serde": made, "topic": topics[0] if topics else step.name}


_LENGTH = Struct(">i")
_NONE = -1


class ChangeSerde(RowSerde[Change]):
    """New and old value of an update, each written by `inner`: the length of the new one (-1: none), it, the old one.

    The byte after the length says whether there is an old value. Only the application itself reads the topic.

    >>> serde = ChangeSerde("str")
    >>> serde.deserialize(serde.serialize(Change("new", None)))
    Change(new='new', old=None)
    """

    fields = Change._fields

    def __init__(self, inner: SerdeLike) -> None:
        self.inner: Serde[Any] = resolve_serde(inner, None, "ChangeSerde: inner")

    def row(self, parts: Sequence[Any]) -> Change:
        return Change(*parts)

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        return {0: self.inner, 1: self.inner}

    def serialize(self, value: Change) -> bytes:
        new = None if value[0] is None else self.inner.serialize(value[0])
        old = b"\x00" if value[1] is None else b"\x01" + self.inner.serialize(value[1])
        return _LENGTH.pack(_NONE if new is None else len(new)) + old[:1] + (new or b"") + old[1:]

    def deserialize(self, data: bytes) -> Change:
        start = _LENGTH.size + 1
        if len(data) < start:
            raise SerdeError(f"ChangeSerde expects at least {start} bytes, found {len(data)}")
        length = _LENGTH.unpack_from(data)[0]
        end = start + max(length, 0)
        if len(data) < end:
            raise SerdeError(f"ChangeSerde expects {length} bytes of the new value, found {len(data) - start}")
        return Change(
            None if length == _NONE else self.inner.deserialize(data[start:end]),
            self.inner.deserialize(data[end:]) if data[_LENGTH.size] else None,
        )


@dataclass(kw_only=True, eq=False)
class TableAggregate(TableOperator):
    """Takes the old value out of the group's aggregate with `subtractor`, and puts the new one in with `adder`.

    The result has the latest timestamp of what went into it. Without an `initializer`, a group's first value is its
    first aggregate, and the aggregate before does not count for its timestamp.
    """

    adder: Aggregator
    subtractor: Aggregator
    initializer: Callable[[], Any] | None = None

    def bind(self, context: ProcessorContext) -> Run:
        update, get, sends_old = self.compile_update(context), self.compile_get(context), self.sends_old
        add, subtract = self.adder.compile(context.node), self.subtractor.compile(context.node)
        initializer = self.initializer

        def run(record: Record) -> None:
            key, (value, old), timestamp, headers = record
            found = get(key)
            aggregate = None if found is None else found[0]
            before = own_copy(aggregate) if sends_old else None
            touched = False
            if old is not None and found is not None:
                aggregate, touched = subtract(key, old, aggregate), True
            if value is not None:
                if aggregate is not None:
                    aggregate, touched = add(key, value, aggregate), True
                elif initializer is None:
                    aggregate = value
                else:
                    aggregate, touched = add(key, value, own_copy(initializer())), True
            if touched and found is not None and found[1] > timestamp:
                timestamp = found[1]
            update(key, aggregate, before, timestamp, headers)

        return run
