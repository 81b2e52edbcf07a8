"""Errors of the operating system, with advice for users; and the limit of open files."""

from __future__ import annotations

import errno
import os

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_KNOWN = (errno.EMFILE, errno.ENFILE, *_FULL, *_FORBIDDEN, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EIO, errno.ENOENT)
_BY_TEXT = {os.strerror(code): code for code in _KNOWN}


def error_number(error: BaseException | str, place: str | None = None) -> int | None:
    """Return the number of an error of the operating system, also of one that is passed on as text.

    Libraries, the JVM and other processes do that.

    `place` is the file or directory of the error. LMDB reports EIO for a write that a full disk cut short: without room
    at `place`, EIO counts as ENOSPC.
    """
    number = getattr(error, "errno", None) or getattr(error, "code", None)
    if not (isinstance(number, int) and number in _KNOWN):
        text = str(error)
        found = [each for each in _BY_TEXT if each in text]
        number = _BY_TEXT[max(found, key=len)] if found else None
    if number == errno.EIO and place is not None and 0 <= free_bytes(place) < _NO_ROOM:
        return errno.ENOSPC
    return number


def free_bytes(place: str) -> int:
    """Return the bytes that this user may still write on the file system of `place`; -1 if unknown."""
    try:
        found = os.statvfs(place)
    except (OSError, AttributeError):  # there is none on Windows
        return -1
    return found.f_bavail * found.f_frsize


def what_to_do(error: BaseException | str, elsewhere: str, place: str | None = None) -> str | None:
    """Return advice for an error at a file or directory; None if nothing better than its own text is known.

    `elsewhere`: advice on choosing another place, such as "set `state_dir` to another directory". `place` is as in
    `error_number`.

    >>> what_to_do(OSError(28, "No space left on device"), "move `state_dir`")
    'the disk is full, or a quota or file size limit is reached: make room there, or move `state_dir`'
    """
    number = error_number(error, place)
    if number == errno.EMFILE:
        return f"too many open files: {open_files_advice()}"
    if number == errno.ENFILE:
        return "this host has too many open files: end other processes, or raise its limit (sysctl fs.file-max)"
    if number in _FULL:
        return f"the disk is full, or a quota or file size limit is reached: make room there, or {elsewhere}"
    if number in _FORBIDDEN:
        return f"make it writable for user {os.getuid()}, or {elsewhere}"
    if number == errno.ENOTDIR:
        return f"a part of its path is not a directory: remove what is there, or {elsewhere}"
    if number == errno.ENAMETOOLONG:
        return f"its path is too long for this file system: {elsewhere}, with a shorter path"
    if number == errno.EIO:
        return f"the disk failed, or is full: check it, make room there, or {elsewhere}"
    if number == errno.ENOENT:
        return "it does not exist: make it"
    return None


def open_files_advice() -> str:
    """Return this process's limit of open files, and how to raise it."""
    soft, hard = open_files_limit()
    return (
        f"the limit of this process is {soft} (hard limit {hard}); raise it with `ulimit -n`, LimitNOFILE= in a "
        "systemd unit, or `--ulimit nofile=` of a container, or let this host run fewer tasks at once"
    )


def open_files_limit() -> tuple[int, int]:
    """Return the soft and the hard limit of open files of this process; -1 is no limit."""
    return (-1, -1) if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_open_files_limit() -> int:
    """Raise this process's soft limit of open files to the hard one, if allowed; return the soft limit (-1: none).

    Processes that this one starts inherit it.
    """
    soft, hard = open_files_limit()
    if resource is not None and soft != hard and soft != resource.RLIM_INFINITY:
        # macOS takes no unlimited one, and some programs close every number below the limit when they start others.
        wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
        if wanted > soft:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            except (OSError, ValueError):
                pass  # a program that needs more files fails with a message of its own
    return open_files_limit()[0]


_MOST = 65_536
_NO_ROOM = 1 << 20
