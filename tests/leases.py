"""Leases of processes that were killed, or that are frozen before they write a note."""

from __future__ import annotations

from collections.abc import Callable

from penstock import Lease, Log


def brief_lease(log: Log, application_id: str = "app") -> Lease:
    """Return a lease that is over at once, as of a process that was killed, and still held while nobody takes it."""
    return log.lease(application_id, "a test", 0)


class Freezing(Lease):
    """A lease whose process is frozen before it writes a note: `meanwhile` others act."""

    def __init__(self, inner: Lease, key: str, meanwhile: Callable[[], object]) -> None:
        self._inner = inner
        self._key = key
        self._meanwhile = meanwhile

    def renew(self) -> None:
        self._inner.renew()

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        if key == self._key:
            self._meanwhile()
        self._inner.put_meta(application_id, key, value)

    def release(self) -> None:
        self._inner.release()
