"""Place: the socket of a task host, and its access rights. Life: when it ends."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock import RuntimeUnavailableError
from penstock.support.file_lock import lock_open_file
from penstock.support.private_files import temporary_top
from penstock.support.system_errors import what_to_do

LEASE_SECONDS = 150.0
"""Seconds without a batch after which a host ends."""
UNUSED_SECONDS = 60.0
"""Seconds in which a new host must get its first request; its query may have ended while it started."""
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class ProcessId:
    """A process; `started` distinguishes it from a later one with the same number ("" if unknown)."""

    pid: int
    started: str = ""
    name: str = "a process"

    def is_there(self) -> bool:
        """Return whether it still runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return not self.started or started_at(self.pid) == self.started


def started_at(pid: int) -> str:
    """Return when a process started, as text that no later process with its number has; "" if that is not known."""
    fields = _stat(pid)
    return "" if not fields or fields[0] == "Z" else fields[19]


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time that a process has taken; None where the system does not say."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else None


def _stat(pid: int) -> list[str]:
    """Return Linux's status fields of a process, from its state on; empty if it has none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The name of the program is in parentheses and may contain anything.
    return text.rpartition(")")[2].split()


def clock() -> float:
    """Return seconds on a clock that also counts while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(eq=False)
class Life:
    """Watches the processes that the host must not outlive, its lease and its place; calls `end` once, with the reason.

    `has_place`: whether proxies can find the host; else they start another one for the slot. It has a thread of its
    own, since the engine may be busy. (A parent-death signal comes when the starting thread ends, as idle Spark workers
    do.)
    """

    watched: Sequence[ProcessId]
    end: Callable[[str], None]
    lease_seconds: float = LEASE_SECONDS
    has_place: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        self._lease_now = min(self.lease_seconds, UNUSED_SECONDS)
        self._users = 0
        self._renewed = clock()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="penstock-life", daemon=True).start()

    def begin_request(self) -> None:
        """Renew the lease; it does not run out while requests are served."""
        with self._lock:
            self._users += 1

    def end_request(self) -> None:
        """Let the lease run from now on."""
        with self._lock:
            self._users -= 1
            self._renewed, self._lease_now = clock(), self.lease_seconds

    def _watch(self) -> None:
        poll = select.poll()
        files = []
        for each in self.watched:
            try:
                file = os.pidfd_open(each.pid)
            except (AttributeError, OSError):
                continue  # looked at once a second below
            files.append(file)
            poll.register(file, select.POLLIN)
        while True:
            # A number may have been given to another process before it was opened here: look at each as well.
            gone = next((each for each in self.watched if not each.is_there()), None)
            if gone is not None:
                self.end(f"{gone.name} ({gone.pid}) has ended")
                return
            if self.has_place is not None and not self.has_place():
                self.end("its socket or its lock file was removed")
                return
            with self._lock:
                is_over = not self._users and clock() > self._renewed + self._lease_now
            if is_over:
                self.end(f"there was no batch for {self._lease_now:.0f} s")
                return
            poll.poll((_LOOK_SECONDS if len(files) < len(self.watched) else 5 * _LOOK_SECONDS) * 1000)


_PREFIX = "penstock-host-"
_LONGEST_PATH = 107 if sys.platform.startswith("linux") else 103
"""Bytes of the longest path of a socket."""
_ELSEWHERE = "let the environment variable TMPDIR (of Spark's workers: spark.executorEnv.TMPDIR) name another directory"
_PAUSE, _MOST_LOOKS = 0.02, 50

Listening = socket.socket


@dataclass(frozen=True)
class Place:
    """The private directory of one task host, with its socket, and a lock file beside it.

    The lock is held for as long as the host runs; the kernel releases it however the host ends. `key` names the host
    among all of this user: a digest of everything that two hosts must not share.
    """

    key: str
    top: str = field(default_factory=temporary_top)
    """The directory in which all hosts of a machine have their places."""

    @property
    def directory(self) -> Path:
        """The directory: made by the host, and removed at its end."""
        return Path(self.top) / f"{_PREFIX}{self.key}"

    @property
    def socket(self) -> Path:
        """The host's socket."""
        return self.directory / "socket"

    @property
    def lock(self) -> Path:
        """The lock file."""
        return self.directory.with_name(self.directory.name + ".lock")

    def check(self) -> None:
        """Raise RuntimeUnavailableError if no host can listen here, with what to do."""
        length = len(os.fsencode(self.socket))
        if length > _LONGEST_PATH:
            raise RuntimeUnavailableError(
                f"the path of a task host's socket would have {length} bytes, and this system takes {_LONGEST_PATH}: "
                f"{self.socket}; {_ELSEWHERE}, with a shorter path"
            )
        top = self.directory.parent
        if not os.access(top, os.W_OK | os.X_OK):
            raise RuntimeUnavailableError(
                f"task hosts need a directory for their sockets, and {top} cannot be written by user {os.getuid()}: "
                f"make it writable, or {_ELSEWHERE}"
            )
        try:
            self.check_directory()
        except FileNotFoundError:
            pass  # no host has made it yet

    def check_directory(self) -> None:
        """Raise RuntimeUnavailableError for a directory that others can use, FileNotFoundError for none."""
        found = os.lstat(self.directory)
        if not stat.S_ISDIR(found.st_mode):
            problem = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is no directory"
        elif found.st_uid != os.getuid():
            problem = f"belongs to user {found.st_uid}, and this is user {os.getuid()}"
        elif found.st_mode & 0o077:
            problem = f"is open to other users (mode {stat.S_IMODE(found.st_mode):o}, expected 700)"
        else:
            return
        raise RuntimeUnavailableError(
            f"{self.directory}, where a task host would listen, {problem}: nothing was sent there. Remove it, or "
            f"{_ELSEWHERE}"
        )

    # ------------------------------------------------------------------ the host's side

    def take(self) -> int | None:
        """Lock the place for this process; return the lock's descriptor, None if another host has it."""
        while True:
            try:
                file = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise self._unusable(self.lock, error) from error
            if not lock_open_file(file):
                os.close(file)
                return None
            if self._has(file):
                os.truncate(file, 0)
                return file
            # An ending host, or a process that cleans up, has removed the file before it was locked.
            os.close(file)

    def is_taken(self) -> bool:
        """Return whether a host has the place now."""
        try:
            file = os.open(self.lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            return not lock_open_file(file, shared=True)
        finally:
            os.close(file)

    def how_it_ended(self) -> str:
        """Return how the last host ended, for a proxy that has just lost it.

        A host removes its lock file at its end. If the file is left, the host was killed: Python's fault handler has
        written into it by which signal, but for SIGKILL, which no process can handle.
        """
        try:
            note = self.lock.read_text(errors="replace")
        except OSError:
            return "has ended"
        for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
            description = signal.strsignal(number)
            if description and f"error: {description}" in note:
                _, _, frame = note.partition("\n  File ")
                where = f" in {frame.splitlines()[0]}" if frame else ""
                return f"was killed by {number.name} ({description}{where})"
        # The kernel ends the connections of a killed process a little before its locks.
        for _ in range(_MOST_LOOKS):
            if not self.is_taken():
                return "was killed by SIGKILL: by the kernel for want of memory, by kill -9, or it called os._exit"
            time.sleep(_PAUSE)
        return "has ended"

    def listen(self) -> Listening:
        """Make the directory and return a listening socket; call it with the lock held."""
        try:
            try:
                self.directory.mkdir(0o700)
            except FileExistsError:
                self.check_directory()
                self.socket.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(os.fspath(self.socket))
            self.socket.chmod(0o600)
            listening.listen(64)
        except OSError as error:
            raise self._unusable(self.socket, error) from error
        return listening

    def _unusable(self, path: Path, error: OSError) -> RuntimeUnavailableError:
        fix = what_to_do(error, _ELSEWHERE) or ""
        return RuntimeUnavailableError(
            f"a task host cannot make {path}: {error.strerror or error}; {fix if _ELSEWHERE in fix else _ELSEWHERE}"
        )

    def is_kept(self, lock: int) -> bool:
        """Return whether proxies still find the host that has this lock: a cleaner may have removed its files.

        Also makes the lock file look young: cleaners of temporary directories remove files by their age.
        """
        try:
            os.utime(lock)
        except OSError:
            pass
        return self._has(lock) and self.socket.exists()

    def leave(self, lock: int) -> None:
        """Remove the files of `take` and `listen`, unless another host has the place.

        The lock ends with the process.
        """
        if not self._has(lock):
            return
        for remove in (self.socket.unlink, self.directory.rmdir, self.lock.unlink):
            try:
                remove()
            except OSError:
                pass  # somebody has cleaned up before

    def clear(self) -> None:
        """Remove the files of a killed host; a place that another host has stays."""
        if not (self.lock.exists() or self.directory.exists()):
            return
        try:
            self.check_directory()
        except FileNotFoundError:
            pass
        except RuntimeUnavailableError:
            return  # another user's
        try:
            lock = self.take()
        except RuntimeUnavailableError:
            return
        if lock is not None:
            self.leave(lock)
            os.close(lock)

    def _has(self, lock: int) -> bool:
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self.lock))
        except OSError:
            return False


def digest_of(*parts: str) -> str:
    """Return a short digest of texts, the same in every process."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process (0 where the system does not say) and the user at the other end of a Unix socket."""
    if hasattr(socket, "SO_PEERCRED"):
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process, user, _ = struct.unpack("3i", data)
        return process, user
    # macOS: LOCAL_PEERCRED at level SOL_LOCAL gives a `struct xucred`.
    _, user = struct.unpack_from("Ii", connection.getsockopt(0, 1, 76))
    return 0, user


def check_peer(connection: socket.socket) -> int:
    """Return the process at the other end. Raises RuntimeUnavailableError if it runs as another user."""
    process, user = peer_of(connection)
    if user != os.getuid():
        raise RuntimeUnavailableError(
            f"process {process} of user {user} is at the other end of a task host's socket, and this is user "
            f"{os.getuid()}: nothing was read from it"
        )
    return process
