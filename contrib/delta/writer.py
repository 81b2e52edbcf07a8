"""DeltaWriter: appends the rows of one partition to a table, and the position, in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock import SinkMovedError, SinkPlace, SinkPosition, SinkRecord, SinkUnavailableError, SinkWriter
from penstock.contrib.arrow.rows import RowMaker

from .library import load
from .position import append, is_still_at, read_position, transactions
from .table import OpenTable

_ATTEMPTS = 10
"""How often a write begins afresh after other commits, such as a deletion, have come between."""
_STALE = ("Invalid table version", "older than the existing snapshot version", "File not found")
"""Texts of errors of a handle whose version is not in the log any more: it was cleaned up, or is another log."""


class DeltaWriter(SinkWriter):
    """The handle of one task.

    A commit is refused if another one of the same place came after the version of the handle: so the position is read
    from that handle, and nothing updates it between that and the commit.
    """

    def __init__(self, table: OpenTable, maker: RowMaker, place: SinkPlace) -> None:
        self._table = table
        self._maker = maker
        self._place = place
        with table.explained():
            self._position = read_position(table.handle, place)

    @property
    def position(self) -> SinkPosition | None:
        return self._position

    def write(self, records: Sequence[SinkRecord], follows: SinkPosition | None, ends: SinkPosition) -> None:
        batch = self._maker.batch(records)  # a row that does not fit costs no commit
        if self._position != follows:
            raise SinkMovedError(f"its position is {self._position}, not {follows}")
        refused: Exception | None = None
        for attempt in range(_ATTEMPTS):
            with self._table.explained():
                refused = self._try_write(batch, follows, ends, afresh=attempt > 0 or follows is None)
                if refused is None:
                    self._table.committed()
                    self._position = ends
                    return
        raise SinkUnavailableError(
            f"other commits came between in {_ATTEMPTS} attempts: {self._table.storage.text_of(refused)}"
        ) from refused

    def _try_write(
        self, batch: Any, follows: SinkPosition | None, ends: SinkPosition, *, afresh: bool
    ) -> Exception | None:
        """Return the error of a commit that was refused because of other commits; None: it is written."""
        table, exceptions = self._table, load().exceptions
        try:
            if afresh:  # also before the first write: a table that was replaced has no position that could be missed
                table.reopen()
            else:
                table.update()
            has_moved = not is_still_at(table.handle, self._place, follows)
        except exceptions.DeltaError as error:
            if afresh or not _is_stale(error):
                raise
            return error  # type: ignore[no-any-return]
        if has_moved:
            raise SinkMovedError(f"its position is not {follows} any more")
        rows = table.columns.rows(batch)
        try:
            append(table.handle, rows, transactions(self._place, follows, ends))
        except exceptions.CommitFailedError as error:
            if "Unsupported table features" in str(error):
                raise
            return error  # type: ignore[no-any-return]
        except exceptions.DeltaError as error:
            if not (isinstance(error, exceptions.SchemaMismatchError) or _is_stale(error)):
                raise
            return error  # type: ignore[no-any-return]
        return None

    def close(self) -> None:
        pass


def _is_stale(error: Exception) -> bool:
    return any(each in str(error) for each in _STALE)
