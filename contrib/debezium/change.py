"""Change: one change of a row, and `latest`, which makes the present row of a change and the row before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock import ProcessingError

from .unavailable import is_unavailable

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's default of `unavailable.value.placeholder`."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """A change of a row, as in the envelope of Debezium.

    `op`: "r" for a row of a snapshot, "c" created, "u" updated, "d" deleted. `before` and `after` are the row's
    columns; PostgreSQL gives in `before` no more than the key, unless the table has REPLICA IDENTITY FULL. `ts_ms`:
    when Debezium processed it; `source` has the time in the database.
    """

    op: str
    before: Row | None
    after: Row | None
    source: Row | None = None
    ts_ms: int | None = None
    transaction: Row | None = None


DELETED = Change("d", None, None)
"""A tombstone: compaction may have removed the deletion before it."""


def latest(row: Row | None, change: Change, unavailable: str = UNAVAILABLE) -> Row | None:
    """Return the row after a change; None if it was deleted. `row` is the one before it, None if there is none.

    PostgreSQL leaves out large values that an update did not touch, and Debezium writes `unavailable` in their place:
    they are taken from `row`. Raises ProcessingError if that does not have them.

    >>> latest({"id": 1, "text": "long"}, Change("u", None, {"id": 1, "text": UNAVAILABLE}))
    {'id': 1, 'text': 'long'}
    >>> latest({"id": 1}, Change("d", {"id": 1}, None))
    """
    if change.op == "d" or change.after is None:
        return None
    present = dict(change.after)
    for name, value in present.items():
        if is_unavailable(value, unavailable):
            if row is None or name not in row:
                raise ProcessingError(
                    f"column {name!r}: its value was not changed, so Debezium had none of it, and no row before this "
                    "change is known: set the table's REPLICA IDENTITY to FULL, and take a snapshot of it"
                )
            present[name] = row[name]
    return present
