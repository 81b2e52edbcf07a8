"""Driver leases: who runs an application on this log."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

import msgpack

from penstock.errors import LogError
from penstock.log import Lease

from ..messages import lease_lost
from .environment import Transaction
from .storage import Storage


@dataclass(frozen=True)
class _Holder:
    owner: str
    host: str
    process: int
    started: str
    token: str
    expires_ms: int

    def is_gone(self) -> bool:
        """Return whether the holder surely ended: its process was on this host and is no more."""
        return self.host == socket.gethostname() and self.started != _started(self.process)


class LocalLease(Lease):
    """A row per application, renewed before it expires; the row of a process that is gone counts as expired."""

    def __init__(self, storage: Storage, application_id: str, owner: str, ttl_ms: int) -> None:
        self._storage = storage
        self._application_id = application_id
        self._owner = owner
        self._ttl_ms = ttl_ms
        self._token = secrets.token_hex(8)
        with storage.write(f"take the lease of {application_id!r}") as (transaction, _):
            held = self._holder(transaction)
            now_ms = storage.clock.now_ms()
            if held is not None and held.expires_ms > now_ms and not held.is_gone():
                raise LogError(
                    f"application {application_id!r} is already run by {held.owner} (process {held.process} on {held.host}); its "
                    f"lease in the local log {storage.directory} ends in {(held.expires_ms - now_ms) / 1000:.1f} s unless renewed: "
                    "stop that one first, or wait if it is gone"
                )
            self._put(transaction, now_ms)

    def renew(self) -> None:
        """Keep it for another period."""
        with self._storage.write(f"renew the lease of {self._application_id!r}") as (transaction, _):
            self._check_mine(transaction)
            self._put(transaction, self._storage.clock.now_ms())

    def release(self) -> None:
        """Give it up; idempotent."""
        with self._storage.write(f"release the lease of {self._application_id!r}") as (transaction, _):
            held = self._holder(transaction)
            if held is not None and held.token == self._token:
                transaction.delete(self._key(), db=self._storage.environment.database("leases"))

    def _check_mine(self, transaction: Transaction) -> None:
        held = self._holder(transaction)
        if held is None or held.token != self._token:
            raise lease_lost(self._application_id, self._owner)

    def _holder(self, transaction: Transaction) -> _Holder | None:
        row = transaction.get(self._key(), db=self._storage.environment.database("leases"))
        return None if row is None else _Holder(**msgpack.unpackb(row))

    def _put(self, transaction: Transaction, now_ms: int) -> None:
        process = os.getpid()
        holder = _Holder(
            self._owner, socket.gethostname(), process, _started(process), self._token, now_ms + self._ttl_ms
        )
        row = msgpack.packb(asdict(holder))
        transaction.put(self._key(), row, db=self._storage.environment.database("leases"))

    def _key(self) -> bytes:
        return self._application_id.encode()


def _started(process: int) -> str:
    """Return when a process started, in a form of this host's own; empty when there is no such process."""
    try:
        # Field 22 of the line, counted after the command's closing parenthesis; a later process with the same number differs.
        return Path(f"/proc/{process}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "running"
