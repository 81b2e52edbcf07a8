"""TableSelect: gives a table's updates the keys of the groups that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import Change, ProcessorContext, Record
from penstock.operator import Operator, Run, new

from ..table_store import NotLatest


@dataclass(kw_only=True, eq=False)
class TableSelect(Operator):
    """Forwards what a group loses, and then what a group gets; both in one record where the group stays (KIP-904).

    `select_key` and `select_value` are functions of key and value. A row without a group key is in no group.
    """

    select_key: Callable[[Any, Any], Any]
    select_value: Callable[[Any, Any], Any] | None = None
    ignores_older: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        forward, ignores_older = context.send, self.ignores_older
        select_key, select_value = self.select_key, self.select_value

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
            # 1 and True are equal, and are not the same key.
            if group is not None and type(group) is type(old_group) and group == old_group:
                forward((group, new(Change, (value, old)), timestamp, headers))
                return
            if old_group is not None:
                forward((old_group, new(Change, (None, old)), timestamp, headers))
            if group is not None:
                forward((group, new(Change, (value, None)), timestamp, headers))

        return run
