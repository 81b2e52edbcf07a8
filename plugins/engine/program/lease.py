"""LeaseKeeper: keeps the lease of an application, so that no second driver starts."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from penstock import FencedError, Lease, LeaseHeldError, LeaseTakenError, Log, PenstockError

_TTL_SECONDS = 15.0
_SPARE_SECONDS = 2.0

_log = logging.getLogger("penstock.applications")


class LeaseKeeper(Lease):
    """Takes the lease when it is made, and renews it from a thread. Raises LogError with the present owner.

    A killed owner's lease is waited for until it expires (LeaseHeldError); `is_wanted`: while True, a living one's,
    too.
    """

    def __init__(self, log: Log, application_id: str, is_wanted: Callable[[], bool] = lambda: False) -> None:
        self._lease: Lease = _take(log, application_id, driver_name(), is_wanted)
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
            except Exception as error:
                # The log is busy or away: try again before the lease expires.
                _log.debug("the lease was not renewed: %s", error)
                continue
        self._give_up()

    def _give_up(self) -> None:
        try:
            self._lease.release()
        except Exception as error:
            _log.warning("the lease was not given up, and ends by itself in %.0f s: %s", _TTL_SECONDS, error)

    def renew(self) -> None:
        """Renew at once: a frozen process then stops before it does harm. Raises FencedError if the lease is lost."""
        if self.lost is not None:
            raise self.lost
        self._lease.renew()

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        self._lease.put_meta(application_id, key, value)

    def release(self) -> None:
        """Stop renewing, and release the lease unless the log is away: then it expires by itself. Idempotent."""
        self._ended.set()
        self._thread.join(_TTL_SECONDS)


def driver_name() -> str:
    """Return this process's name as a driver, for messages."""
    return f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}, process {os.getpid()}"


def _take(log: Log, application_id: str, owner: str, is_wanted: Callable[[], bool]) -> Lease:
    deadline = time.monotonic() + _TTL_SECONDS + _SPARE_SECONDS
    said = False
    while True:
        try:
            return log.lease(application_id, owner, int(_TTL_SECONDS * 1000))
        except LeaseTakenError as error:
            waits = is_wanted()
            may_be_dead = isinstance(error, LeaseHeldError) and time.monotonic() <= deadline
            if not (waits or may_be_dead):
                raise
            if not said:
                said = True
                if waits:
                    _log.info("%s: waiting until that ends, to take over", error)
                else:
                    _log.warning("%s; if it was killed, its lease ends within %.0f s: waiting", error, _TTL_SECONDS)
        time.sleep(0.5)
