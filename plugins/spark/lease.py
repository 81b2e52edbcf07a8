"""LeaseKeeper: holds the log's lease on an application while it runs, so that no second driver starts."""

from __future__ import annotations

import os
import socket
import threading

from penstock.errors import FencedError, PenstockError
from penstock.log import Lease, Log

_TTL_SECONDS = 15.0


class LeaseKeeper:
    """Takes the lease when made, and renews it from a thread. Raises LogError naming who holds it."""

    def __init__(self, log: Log, application_id: str) -> None:
        owner = f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}, process {os.getpid()}"
        self._lease: Lease = log.lease(application_id, owner, int(_TTL_SECONDS * 1000))
        self.lost: PenstockError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="penstock-lease", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._ended.wait(_TTL_SECONDS / 3):
            try:
                self._lease.renew()
            except FencedError as error:
                self.lost = error
                return
            except PenstockError:
                # The log is busy or away: another third of the period is left to try again.
                continue

    def check(self) -> None:
        """Renew at once: who was frozen for long finds out before it does harm. Raises FencedError when it was lost."""
        if self.lost is not None:
            raise self.lost
        self._lease.renew()

    def release(self) -> None:
        """Stop renewing and give the lease up; idempotent."""
        self._ended.set()
        self._thread.join()
        if self.lost is None:
            self._lease.release()
