"""What goes wrong with an LMDB environment, in words that name its directory and say what to do."""

from __future__ import annotations

import errno
import os

import lmdb

from penstock.errors import StoreError

DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
"""What opening files that are none, or another version's, or in pieces, raises."""


def explain(directory: str, error: Exception) -> StoreError:
    """Return the StoreError for an error of LMDB or of the operating system."""
    text = str(error)
    code = getattr(error, "errno", None)  # LMDB has error types for its own failures, and only texts for the system's

    def says(*phrases: str) -> bool:
        return any(phrase in text for phrase in phrases)

    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or says(
        "No space left",
        "File too large",
        "quota exceeded",
        "Input/output error",  # the last after half a page
    ):
        fix = "the disk is full, or failed, or a limit is reached: free some space, or set state_dir to another disk"
    elif (
        isinstance(error, (lmdb.ReadonlyError, PermissionError))
        or code == errno.EROFS
        or says("Permission denied", "Read-only file system", "Operation not permitted")
    ):
        fix = f"make it writable for user {os.getuid()}, or set state_dir to another directory"
    elif isinstance(error, FileNotFoundError) or says("No such file"):
        fix = "it does not exist: make it"
    elif isinstance(error, NotADirectoryError) or says("Not a directory"):
        fix = "it is not a directory: remove what is there"
    elif isinstance(error, (*DAMAGE, lmdb.PanicError)):
        fix = "its files are damaged: delete them, and the state is restored from the changelog"
    elif isinstance(error, lmdb.ReadersFullError):
        fix = "too many readers have it open: end some"
    elif says("already open"):
        fix = "this process was forked while it was open: close it before forking, or start processes with `spawn`"
    else:
        fix = "if this stays, delete the directory, and the state is restored from the changelog"
    return StoreError(f"store directory {directory}: {text}; {fix}")
