"""Whether what a process wrote is on disk, and not in the system's memory alone: Linux 6.5 and later say so."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

_DISK = Path("/var/tmp")

PAGE = os.sysconf("SC_PAGESIZE")
"""The bytes of a page."""
_CACHESTAT = 451
"""The number of the system call, which is the same on all machines."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cached(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recent"))


@contextmanager
def on_disk(directory: Path) -> Iterator[Path]:
    """Return an empty directory of whose files the system says what is on disk: below `directory` or elsewhere.

    A test's own directory is often in memory. The other one is below /var/tmp, and is deleted afterwards. Skips the
    test where neither is on a disk.
    """
    place = next((each for each in (directory, _DISK) if os.access(each, os.W_OK) and _says(each)), None)
    if place is None:
        pytest.skip(
            f"the system does not say what is on disk, neither in the test's directory nor in {_DISK}: that takes "
            "Linux 6.5 or later, and a file system on a disk; name a directory there: pytest --basetemp DIR"
        )
    with TemporaryDirectory(prefix="penstock-", dir=place, ignore_cleanup_errors=True) as empty:
        yield Path(empty)


def _says(directory: Path) -> bool:
    with TemporaryDirectory(dir=directory) as probing:
        probe = Path(probing) / "probe"
        probe.write_bytes(os.urandom(10_000))
        return bool(_unsynced_pages(probe))


def expect_durable(directory: Path, rule: str) -> None:
    """Fail with the rule if of 1 MiB that was just written to files of an `on_disk` half is in memory alone."""
    unsynced = sum(map(_unsynced_pages, filter(Path.is_file, directory.rglob("*")))) * PAGE
    assert unsynced < 1 << 19, (
        f"{rule}: of 1 MiB, {unsynced:,} bytes were only in the system's memory, which a crash of the machine loses; "
        "sync the files (os.fsync)"
    )


def dirty_pages(path: Path) -> set[int]:
    """Return the numbers of the pages of a file in an `on_disk` that are in memory alone."""
    pages = range(-(-path.stat().st_size // PAGE))
    return {page for page in pages if _unsynced_pages(path, page)} if _unsynced_pages(path) else set()


def _unsynced_pages(path: Path, page: int | None = None) -> int:
    """Return how many pages of a file, or of one page of it, are in memory alone."""
    if sys.platform != "linux":
        return 0
    part = _Range(0, 0) if page is None else _Range(page * PAGE, PAGE)
    file = os.open(path, os.O_RDONLY)
    try:
        found = _Cached()
        system = ctypes.CDLL(None, use_errno=True)
        failed = system.syscall(_CACHESTAT, file, ctypes.byref(part), ctypes.byref(found), 0)
        return 0 if failed else int(found.dirty + found.writeback)
    finally:
        os.close(file)
