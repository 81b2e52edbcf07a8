"""Driver leases: one driver for each application on this log."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgpack

from penstock import Lease, LeaseHeldError, LeaseTakenError, LogError
from penstock.support.file_lock import lock_open_file
from penstock.support.private_files import FILE_MODE

from ..messages import lease_lost
from .layout import named_key, of_older_version
from .storage import LogStorage
from .transaction import Transaction

_LOCK_PREFIX = "lease-"


@dataclass(frozen=True)
class _Holder:
    """A row: the holder, until when it holds the lease, and the token that names its lock file."""

    owner: str
    host: str
    process: int
    token: str
    expires_ms: int

    @classmethod
    def from_row(cls, row: bytes, directory: str) -> _Holder:
        """Return the holder that `to_row` wrote in the log of a directory. Raises LogError for another form."""
        try:
            return cls(**msgpack.unpackb(row))
        except TypeError:
            raise of_older_version(directory, "a lease") from None

    def to_row(self) -> bytes:
        row: bytes = msgpack.packb(asdict(self))
        return row


class LocalLease(Lease):
    """A row for each application, renewed before it expires, and a file that the holder's process keeps locked.

    The kernel ends the lock with the process. Unlike a process id and a host name, the lock works across containers of
    this machine, and for a container that starts again under another host name.
    """

    def __init__(self, storage: LogStorage, application_id: str, owner: str, ttl_ms: int) -> None:
        self._storage = storage
        self._application_id = application_id
        self._owner = owner
        self._ttl_ms = ttl_ms
        self._token = secrets.token_hex(8)
        self._file: int | None = None
        try:
            with storage.write(f"take the lease of {application_id!r}") as (transaction, _), self._naming_errors():
                holder = self._holder(transaction)
                now_ms = storage.clock.now_ms()
                if holder is not None and holder.expires_ms > now_ms:
                    self._check_gone(holder, now_ms)
                # All lock files are made and removed inside a write transaction, so no other process is between two
                # steps of it.
                self._file = os.open(self._lock_path(self._token), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
                lock_open_file(self._file, wait=True)
                self._put(transaction, now_ms)
                self._remove_unused(transaction)
        except BaseException:
            self._unlock()
            raise

    def renew(self) -> None:
        with self._storage.write(f"renew the lease of {self._application_id!r}") as (transaction, _):
            self._renew(transaction)

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        with self._storage.write(f"keep {key!r} of {application_id!r}") as (transaction, _):
            self._renew(transaction)
            transaction.put("meta", named_key(application_id, key.encode()), value)

    def _renew(self, transaction: Transaction) -> None:
        holder = self._holder(transaction)
        if holder is None or holder.token != self._token:
            raise lease_lost(self._application_id, self._owner)
        self._put(transaction, self._storage.clock.now_ms())

    def release(self) -> None:
        with self._storage.write(f"release the lease of {self._application_id!r}") as (transaction, _):
            holder = self._holder(transaction)
            if holder is not None and holder.token == self._token:
                transaction.delete("leases", self._key())
            self._lock_path(self._token).unlink(missing_ok=True)
        self._unlock()

    def _check_gone(self, holder: _Holder, now_ms: int) -> None:
        """Return if the holder's process has ended. Raises LeaseTakenError if it runs, LeaseHeldError if it may run."""
        runs = _is_locked(self._lock_path(holder.token))
        if runs is False:
            return
        kind = LeaseHeldError if runs is None else LeaseTakenError
        raise kind(
            f"application {self._application_id!r} is already run by {holder.owner} (process {holder.process} on "
            f"{holder.host}); its lease in the local log {self._storage.directory} ends in "
            f"{(holder.expires_ms - now_ms) / 1000:.1f} s unless renewed: stop that one first, or wait if it is gone"
        )

    def _remove_unused(self, transaction: Transaction) -> None:
        """Remove the lock files of processes that have ended, except those that a row names."""
        with transaction.cursor("leases") as cursor:
            named = {self._lock_path(self._read(row).token) for _, row in cursor}
        for path in Path(self._storage.directory).glob(f"{_LOCK_PREFIX}*"):
            if path not in named and not _is_locked(path):
                path.unlink(missing_ok=True)

    def _holder(self, transaction: Transaction) -> _Holder | None:
        row = transaction.get("leases", self._key())
        return None if row is None else self._read(row)

    def _read(self, row: bytes) -> _Holder:
        return _Holder.from_row(row, self._storage.directory)

    def _put(self, transaction: Transaction, now_ms: int) -> None:
        holder = _Holder(self._owner, socket.gethostname(), os.getpid(), self._token, now_ms + self._ttl_ms)
        transaction.put("leases", self._key(), holder.to_row())

    def _unlock(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LogError(
                f"local log {self._storage.directory}: the lease of {self._application_id!r} cannot be locked: "
                f"{error.strerror or error}; make the directory writable, on a local disk"
            ) from error

    def _lock_path(self, token: str) -> Path:
        return Path(self._storage.directory, _LOCK_PREFIX + token)

    def _key(self) -> bytes:
        return self._application_id.encode()


def _is_locked(path: Path) -> bool | None:
    """Return whether a process holds the lock of a file; None when there is no such file."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return not lock_open_file(file)
    finally:
        os.close(file)
