"""Programs with a Delta table, and what the table has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock import Sink
from penstock.contrib.delta import delta

from ..programs import direct, through_outbox

COLUMNS = {"name": "string", "value": "string"}
PROGRAMS = {"direct": direct, "through a topic": through_outbox}
CHANGES: dict[str, Callable[[str], str]] = {"direct": str, "through a topic": str.upper}


def sink(table: Path, **options: Any) -> Sink:
    return delta(table, **{"columns": COLUMNS, "key": "name", **options})


def rows_in(table: Path) -> list[dict[str, Any]]:
    """Return the rows as of now; none if there is no table."""
    try:
        handle = DeltaTable(table)
    except TableNotFoundError:
        return []
    found: list[dict[str, Any]] = handle.to_pyarrow_table().to_pylist()
    return found


def counted(table: Path) -> Counter[tuple[Any, ...]]:
    """Return how often each row is there."""
    return Counter(tuple(row.values()) for row in rows_in(table))
