"""Errors of an LMDB environment, with its directory and what to do."""

from __future__ import annotations

import os

import lmdb

from penstock import StoreError
from penstock.support.system_errors import what_to_do

DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
"""Raised for files that are damaged, of another LMDB version, or not LMDB's."""

STALE = (
    *DAMAGE, lmdb.BadTxnError, lmdb.BadRslotError, lmdb.PanicError, lmdb.MapResizedError, lmdb.MemoryError,
)  # fmt: skip
"""Raised to a reader also where only what it has open is spoiled, such as by a writer that no longer knew of it."""


def explain(directory: str, error: Exception) -> StoreError:
    """Return the StoreError for an error of LMDB or of the operating system."""
    text = str(error)
    known = None if isinstance(error, DAMAGE) else what_to_do(error, "set state_dir to another directory", directory)
    if known is not None:
        fix = known
    elif isinstance(error, lmdb.ReadonlyError):
        fix = f"make it writable for user {os.getuid()}, or set state_dir to another directory"
    elif isinstance(error, (*DAMAGE, lmdb.PanicError)):
        fix = "its files are damaged: delete them, and the state is restored from the changelog"
    elif isinstance(error, lmdb.ReadersFullError):
        fix = "too many readers have it open: end some"
    elif "already open" in text:
        fix = "this process was forked while it was open: close it before forking, or start processes with `spawn`"
    else:
        fix = "if this stays, delete the directory, and the state is restored from the changelog"
    return StoreError(f"store directory {directory}: {text}; {fix}")
