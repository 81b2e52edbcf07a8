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
    probe = directory / "probe-of-the-contract"
    probe.write_bytes(os.urandom(10_000))
    try:
        if not _unsynced_pages(probe):
            return None  # an older system, or a file system in memory
    finally:
        probe.unlink()
    return sum(_unsynced_pages(file) for file in directory.rglob("*") if file.is_file()) * os.sysconf("SC_PAGESIZE")


def _unsynced_pages(path: Path) -> int:
    if sys.platform != "linux":
        return 0
    file = os.open(path, os.O_RDONLY)
    try:
        found = _Cached()
        system = ctypes.CDLL(None, use_errno=True)
        failed = system.syscall(_CACHESTAT, file, ctypes.byref(_Range(0, 0)), ctypes.byref(found), 0)
        return 0 if failed else int(found.dirty)
    finally:
        os.close(file)
