"""Checkpoint: Spark's checkpoint of an application. It is disposable: the committed state is in the log."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from penstock import IncompatibleStateError, Settings
from penstock.plugins.engine.program.checkpoint_files import (
    checkpoint_location,
    checkpoint_writable,
    not_deleted,
    pointer_directory,
)
from penstock.support.private_files import make_private_directory, write_private_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORM = 3
"""Of the offsets and states that this version writes: a group is a slot."""

_log = logging.getLogger("penstock.spark")


@dataclass(frozen=True)
class _Pointer:
    """The directory in use, and what it was made for. `form`: of its offsets and states."""

    directory: str
    identity: str
    parallelism: int
    spark: str
    form: int


class Checkpoint:
    """The checkpoint of one application.

    `identity` is the application's incarnation in the log. A checkpoint of another incarnation raises
    IncompatibleStateError: the log was replaced or lost. A checkpoint for another number of Spark partitions, of
    another release of Spark, or of another form is replaced. `delete` deletes the directory or URL of a replaced one.
    """

    def __init__(
        self,
        settings: Settings,
        application_id: str,
        identity: str,
        parallelism: int,
        spark: str,
        delete: Callable[[str], None],
    ) -> None:
        self._delete = delete
        self._root = checkpoint_location(settings, application_id)
        self.is_local = "://" not in self._root
        local = pointer_directory(settings, application_id)
        with checkpoint_writable(local):
            make_private_directory(local)
        self._path = local / "current.json"
        self._wanted = _Pointer("", identity, parallelism, spark, _FORM)
        found = self._read()
        self.is_new = found is None
        if found is not None and found.identity != identity:
            raise IncompatibleStateError(
                f"application {application_id!r}: Spark's checkpoint in {self._path.parent} was made with another log, "
                f"or this one was replaced: the log {settings.shown('log')!r} does not know the commits that it "
                "remembers. Is it the right log? If the application was reset with `penstock reset` on another host, "
                f"delete {self._path.parent}. Otherwise bring that log back: with this one everything is processed "
                "again"
            )
        if found is not None and replace(found, directory="") == self._wanted:
            self.directory = found.directory
        else:
            self.renew()

    def renew(self) -> None:
        """Start a new checkpoint and delete the present one."""
        self.is_new = True
        directory = f"{self._root}/{secrets.token_hex(6)}"
        previous = self._read()
        aside = self._path.with_suffix(".new")
        pointer = replace(self._wanted, directory=directory)
        with checkpoint_writable(self._path.parent):
            write_private_text(aside, json.dumps(asdict(pointer)))
            os.replace(aside, self._path)
        self.directory = directory
        if previous is not None:
            try:
                self._delete(previous.directory)
            except Exception as error:
                _log.warning("%s", not_deleted(previous.directory, error))

    def _read(self) -> _Pointer | None:
        try:
            return _Pointer(**json.loads(self._path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            _log.warning("%s is damaged (%s): starting a new checkpoint", self._path, error)
            return None


def delete_with_spark(session: SparkSession, location: str) -> None:
    """Delete a directory or URL with all that is in it, by the file systems and credentials that Spark has."""
    context = session.sparkContext
    assert context._jvm is not None
    path = context._jvm.org.apache.hadoop.fs.Path(location)
    path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)
