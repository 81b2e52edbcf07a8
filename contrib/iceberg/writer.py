"""IcebergWriter: writes the records of one partition to a table, and the position, in one commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from penstock import SinkPlace, SinkPosition, SinkRecord, SinkWriter
from penstock.contrib.arrow.library import load as load_arrow
from penstock.contrib.arrow.rows import RowMaker

from .fence import FencedCatalog, position_in, property_of, text_of
from .library import OpenCatalog

_locks: dict[tuple[int, str], Lock] = {}
"""By process and table, a lock: the tasks of a process take turns, as each commit makes concurrent ones try again."""

_LONGEST_TURN = 30.0


class IcebergWriter(SinkWriter):
    """The open catalog of one task. `check`: raises SinkError if the table's metadata cannot take the rows."""

    def __init__(
        self, catalog: OpenCatalog, table: Any, maker: RowMaker, place: SinkPlace, check: Callable[[Any], None]
    ) -> None:
        self._catalog = catalog
        self._name = table.name()
        self._uuid = table.metadata.table_uuid
        self._maker = maker
        self._lock = _locks.setdefault((os.getpid(), str(self._uuid)), Lock())
        self._property = property_of(place)
        self._check = check
        self._checked: tuple[int, int] | None = None
        self._check_forms(table.metadata)
        self._position = position_in(table.metadata.properties, self._property)

    def _check_forms(self, metadata: Any) -> None:
        """Check the table again if somebody has changed its columns or partitions."""
        forms = (metadata.current_schema_id, metadata.default_spec_id)
        if forms != self._checked:
            self._check(metadata)
            self._checked = forms

    @property
    def position(self) -> SinkPosition | None:
        return self._position

    def write(self, records: Sequence[SinkRecord], follows: SinkPosition | None, ends: SinkPosition) -> None:
        rows = load_arrow().Table.from_batches([self._maker.batch(records)])
        fenced = FencedCatalog(self._catalog.raw, self._uuid, self._property, follows, ends)
        with self._turn(), self._catalog.explained("write"):
            table = fenced.load_table(self._name)
            self._check_forms(table.metadata)
            transaction = table.transaction()
            transaction.set_properties({self._property: text_of(ends)})
            transaction.append(rows)
            transaction.commit_transaction()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for the other tasks, but not for one whose catalog does not answer: it may have another connection."""
        is_own = self._lock.acquire(timeout=_LONGEST_TURN)
        try:
            yield
        finally:
            if is_own:
                self._lock.release()

    def close(self) -> None:
        self._catalog.close()
