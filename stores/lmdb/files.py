"""The files of an LMDB environment: their names, opening them, and whether a reader may."""

from __future__ import annotations

import os
from typing import Any

import lmdb

from penstock import StoreError
from penstock.support.private_files import FILE_MODE

from .trust_mark import TrustMark

DATA, LOCK, WRITER = "data.mdb", "lock.mdb", "writer.lock"
_MAX_DATABASES = 256
_MAX_READERS = 1024
"""How many stores of a task, and how many readers at once, there may be."""


def check_readable(directory: str, mark: TrustMark) -> None:
    """Raise StoreError where a reader would find nothing, or files that may be damaged."""
    if not os.path.exists(os.path.join(directory, DATA)):
        raise StoreError(f"store directory {directory}: nothing to read there yet; start the task that writes it")
    if mark.is_stale():
        raise StoreError(
            f"store directory {directory}: the machine went down since it was written, or its disk refused a part: "
            "start the task that writes it, which rebuilds it"
        )


def open_files(directory: str, map_size: int, *, read_only: bool) -> Any:
    """Open the environment in a directory, of `map_size` bytes of address space. Raises lmdb.Error."""
    return lmdb.open(
        directory,
        map_size=map_size,
        max_dbs=_MAX_DATABASES,
        max_readers=_MAX_READERS,
        # With spare transactions, a forked child that drops the environment would end its parent's.
        max_spare_txns=0,
        readonly=read_only,
        create=not read_only,
        # The changelog is the durable copy; after a crash of the machine these files are not trusted.
        sync=False,
        metasync=False,
        readahead=False,
        meminit=False,
        mode=FILE_MODE,
    )


def fill_up(environment: Any, directory: str) -> None:
    """Extend the file to the size that LMDB expects: reading beyond the end of the file would be a SIGBUS.

    No other process writes meanwhile. An intact file may lack a few pages that were never written. A part of a page is
    damage: LMDB would read it as a page without some of its rows.
    """
    path, page_size = os.path.join(directory, DATA), environment.stat()["psize"]
    size, found = (environment.info()["last_pgno"] + 1) * page_size, os.path.getsize(path)
    if found < size and found % page_size:
        raise lmdb.CorruptedError(f"{DATA} has {found} bytes, and should have {size}")
    if found < size:
        os.truncate(path, size)
