"""Whether what a process wrote is on disk, and not in the system's memory alone: Linux 6.5 and later say so."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

_CACHESTAT = 451
"""The number of the system call, which is the same on all machines."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cached(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recent"))


def expect_durable(directory: Path, rule: str) -> None:
    """Fail with the rule if of 1 MiB that was just written to files of a directory half is in memory alone.

    Skips the test where the system does not say what is on disk.
    """
    unsynced = _unsynced_bytes(directory)
    if unsynced is None:
        pytest.skip("this system, or this file system, does not say what is on disk")
    assert unsynced < 1 << 19, (
        f"{rule}: of 1 MiB, {unsynced:,} bytes were only in the system's memory, which a crash of the machine loses; "
        "sync the files (os.fsync)"
    )


def _unsynced_bytes(directory: Path) -> int | None:
    """Return about how many bytes of the files in a directory a crash of the machine would lose; None if unknown."""
    if not can_say(directory):
        return None
    return sum(_unsynced_pages(file) for file in directory.rglob("*") if file.is_file()) * os.sysconf("SC_PAGESIZE")


def dirty_pages(path: Path) -> set[int] | None:
    """Return the numbers of the pages of a file that are in memory alone; None where the system does not say."""
    if not can_say(path.parent):
        return None
    pages = range(-(-path.stat().st_size // os.sysconf("SC_PAGESIZE")))
    return {page for page in pages if _unsynced_pages(path, page)} if _unsynced_pages(path) else set()


def can_say(directory: Path) -> bool:
    """Return whether the system says what is on disk: not an older one, or a file system in memory."""
    probe = directory / "probe-of-the-contract"
    probe.write_bytes(os.urandom(10_000))
    try:
        return bool(_unsynced_pages(probe))
    finally:
        probe.unlink()


def _unsynced_pages(path: Path, page: int | None = None) -> int:
    """Return how many pages of a file, or of one page of it, are in memory alone."""
    if sys.platform != "linux":
        return 0
    size = os.sysconf("SC_PAGESIZE")
    part = _Range(0, 0) if page is None else _Range(page * size, size)
    file = os.open(path, os.O_RDONLY)
    try:
        found = _Cached()
        system = ctypes.CDLL(None, use_errno=True)
        failed = system.syscall(_CACHESTAT, file, ctypes.byref(part), ctypes.byref(found), 0)
        return 0 if failed else int(found.dirty + found.writeback)
    finally:
        os.close(file)
