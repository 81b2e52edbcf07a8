"""Rows: how records become rows: which columns the key and the timestamp have, and what a value may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock import SinkRecord, SinkRefusedError

from .values import shown

Row = Callable[[SinkRecord], Mapping[str, Any] | None]
"""Returns the columns of a record by name, without those of the key; None: delete the row of the key."""
MODES = ("insert", "upsert")


@dataclasses.dataclass(frozen=True)
class Rows:
    """The options of a sink that say what a record's row is; `PostgresSink` explains them."""

    key: tuple[str, ...]
    mode: str
    row: Row | None
    timestamp: str | None

    def values_of(self, record: SinkRecord, names: Sequence[str]) -> Mapping[str, Any] | None:
        """Return a record's columns by name; None: it is a deletion. Raises SinkRefusedError for what does not fit."""
        found: dict[str, Any] = self.key_parts(record.key)
        if self.timestamp is not None:
            found[self.timestamp] = record.timestamp
        value = record.value if self.row is None else self.row(record)
        if value is None:
            return None
        others = [name for name in names if name not in found]
        mapping = _mapping_of(value)
        if mapping is None:
            if len(others) != 1:
                raise SinkRefusedError(
                    f"its value is a {type(value).__name__}, {shown(value)}, expected a mapping of columns: "
                    f"{', '.join(others) or 'none beside the key'}"
                )
            mapping = {others[0]: value}
        if unknown := [name for name in mapping if name not in names]:
            raise SinkRefusedError(
                f"its value has {', '.join(map(str, unknown))}, and the table's columns are {', '.join(names)}"
            )
        return {**mapping, **found}

    def key_parts(self, key: Any) -> dict[str, Any]:
        """Return the columns of a record's key by name. Raises SinkRefusedError for a key that does not fit."""
        names = self.key
        if not names:
            return {}
        if isinstance(key, Mapping):
            parts = [key.get(name) for name in names]
        elif len(names) == 1:
            parts = [key]
        elif isinstance(key, tuple) and len(key) == len(names):
            parts = list(key)
        else:
            raise SinkRefusedError(f"its key is {shown(key)}, expected a tuple or a mapping of {', '.join(names)}")
        if self.mode == "upsert" and None in parts:
            raise SinkRefusedError(f"its key is {shown(key)}: a row of {', '.join(names)} needs one")
        return dict(zip(names, parts, strict=True))


def _mapping_of(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    fields = getattr(value, "_fields", None)
    return dict(zip(fields, value, strict=True)) if isinstance(value, tuple) and fields else None
