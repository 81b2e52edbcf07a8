"""OpenTable: the handle of a Delta table that was made or checked, and is brought up to date before each write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from penstock import SinkError, SinkUnavailableError

from .columns import TableColumns
from .library import Storage, load
from .local import LOG, local_path, sync_commit

_opened: set[str] = set()
_written: set[str] = set()
"""URIs of tables that this process has opened, and of those that it has written: after that, one is away."""
_RETENTION, _MAPPING = "delta.setTransactionRetentionDuration", "delta.columnMapping.mode"


class OpenTable:
    """A table. Methods raise SinkUnavailableError for one that is away, and SinkError for what a person must repair."""

    def __init__(self, storage: Storage, wanted: Any, partition_by: Sequence[str]) -> None:
        self.storage = storage
        self._wanted = wanted
        self._partition_by = list(partition_by)
        self._directory = local_path(storage.uri)
        self._id: str | None = None
        self._schema = ""
        with self.explained():
            self.reopen()
            if self._directory is not None and not os.access(os.path.join(self._directory, LOG), os.W_OK):
                raise PermissionError("Permission denied: the directory of its log is not writable")
        _opened.add(storage.uri)

    def explained(self) -> Any:
        """Return the context in which errors are those of a sink."""
        uri = self.storage.uri
        return self.storage.explained(was_opened=uri in _opened, was_written=uri in _written)

    def reopen(self) -> None:
        """Read the table afresh, and check it; make it if it is missing."""
        place = self._place()
        handle = self._open()
        if handle is None:
            handle = self._make()
            place = self._place()
        self._take(handle)
        self._at = place

    def update(self) -> None:
        """Read the commits since the last time."""
        if self._place() != self._at:
            # deltalake would find nothing new in a directory that is not there, and write files to it.
            self.reopen()
            return
        self.handle.update_incremental()
        self._take(self.handle)

    def committed(self) -> None:
        """Make the commit durable that the handle has made."""
        if self._directory is not None:
            sync_commit(self._directory, self.handle.version())
            if self._place() != self._at:
                raise SinkUnavailableError("the directory was moved or unmounted during a commit")
        _written.add(self.storage.uri)

    def _place(self) -> tuple[int, int] | None:
        """Return the identity of the directory of the log, None if it is not there; of another store, a constant."""
        if self._directory is None:
            return 0, 0
        try:
            status = os.stat(os.path.join(self._directory, LOG))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_dev, status.st_ino

    def _open(self) -> Any:
        deltalake = load()
        try:
            return deltalake.DeltaTable(
                self.storage.uri if self._directory is None else self._directory,
                storage_options=dict(self.storage.options),
            )
        except deltalake.exceptions.TableNotFoundError as error:
            if "Unknown scheme" in str(error):
                raise SinkError(self.storage.text_of(error)) from error
            return None

    def _make(self) -> Any:
        deltalake, uri = load(), self.storage.uri
        if uri in _opened:
            raise self._missing()
        directory = self._directory
        if directory is not None and not os.path.isdir(os.path.dirname(directory)):
            raise SinkError(f"there is no directory {os.path.dirname(directory)}: make it, or mount it")
        try:
            handle = deltalake.DeltaTable.create(
                directory or uri,
                self._wanted,
                partition_by=self._partition_by,
                storage_options=dict(self.storage.options),
                # With a retry, two tasks would both make it, and the later one replace the earlier one's table.
                commit_properties=deltalake.CommitProperties(max_commit_retries=0),
            )
        except deltalake.exceptions.DeltaError:
            handle = self._open()  # another task has made it meanwhile
            if handle is None:
                raise
        if directory is not None:
            sync_commit(directory, 0)
        return handle

    def _missing(self) -> SinkError:
        """Return the error for a table that was there."""
        if self._directory is not None:  # perhaps a file system that is not mounted
            return SinkUnavailableError(
                "the table is not there any more: bring it back; or, if it was deleted, stop the application"
            )
        return SinkError("the table was deleted while the application ran: bring it back, or reset the application")

    def _take(self, handle: Any) -> None:
        """Check a handle of another version, and use it."""
        metadata, schema = handle.metadata(), handle.schema().to_json()
        if self._id is not None and metadata.id != self._id:
            raise SinkError(
                "the table was replaced by another one while the application ran: start it again if that is right. It "
                "continues at its position"
            )
        texts = f"{schema} {metadata.configuration} {metadata.partition_columns}"
        if texts != self._schema:
            _check_properties(metadata.configuration)
            self.columns = TableColumns(handle, self._wanted, self._partition_by)
        self.handle, self._id, self._schema = handle, metadata.id, texts


def _check_properties(properties: dict[str, str]) -> None:
    if _RETENTION in properties:
        raise SinkError(
            f"the table sets {_RETENTION} to {properties[_RETENTION]!r}: readers would forget the position, which is a "
            "transaction without a time, and rows would be there twice. Remove it: ALTER TABLE ... UNSET TBLPROPERTIES"
        )
    if properties.get(_MAPPING, "none") != "none":
        raise SinkError(f"the table sets {_MAPPING} to {properties[_MAPPING]!r}, which deltalake does not write")
