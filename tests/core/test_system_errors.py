"""Errors of the operating system in words, and the limit of open files."""

from __future__ import annotations

import errno
import os
import resource
from multiprocessing.connection import Connection

import pytest

from penstock.plugins.testing.contracts.child import answer, forked
from penstock.support.system_errors import error_number, open_files_limit, raise_open_files_limit, what_to_do

SAID = [
    (errno.EMFILE, "too many open files: the limit of this process is"),
    (errno.ENFILE, "this host has too many open files"),
    (errno.ENOSPC, "the disk is full"),
    (errno.EDQUOT, "the disk is full, or a quota"),
    (errno.EFBIG, "file size limit is reached"),
    (errno.EROFS, "make it writable for user"),
    (errno.EACCES, "make it writable for user"),
    (errno.EPERM, "make it writable for user"),
    (errno.ENOTDIR, "not a directory"),
    (errno.ENAMETOOLONG, "too long"),
    (errno.EIO, "the disk failed"),
    (errno.ENOENT, "does not exist"),
]


@pytest.mark.parametrize(("code", "said"), SAID, ids=[errno.errorcode[code] for code, _ in SAID])
def test_what_to_do(code: int, said: str) -> None:
    for error in (
        OSError(code, os.strerror(code)),
        RuntimeError(f"mdb_put: {os.strerror(code)}"),
        f"java.io.IOException: {os.strerror(code)}",
    ):
        assert error_number(error) == code
        found = what_to_do(error, "set `it` to another directory")
        assert found is not None
        assert said in found
        assert ("writable" in found) == (code in (errno.EROFS, errno.EACCES, errno.EPERM))


def test_an_error_of_which_nothing_is_known() -> None:
    assert what_to_do(ValueError("no"), "go") is None
    assert what_to_do(OSError(errno.ECONNREFUSED, "Connection refused"), "go") is None


def test_the_soft_limit_of_open_files_is_raised() -> None:
    def child(connection: Connection) -> None:
        _, hard = open_files_limit()
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        raise_open_files_limit()
        connection.send(open_files_limit())
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
        connection.send(raise_open_files_limit())
        connection.send(raise_open_files_limit())

    with forked(child) as connection:
        soft, hard = answer(connection)
        assert soft == hard or soft == 65_536
        assert [answer(connection), answer(connection)] == [200, 200]
