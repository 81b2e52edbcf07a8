"""The part of `LogContract` about driver leases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock import Commit, FencedError, LeaseTakenError, Log, LogError, ManualClock

from .expectations import check
from .log_tests import APPLICATION, LogTests, created


class LeaseTests(LogTests):
    """Leases: one driver for each application."""

    def test_a_lease_keeps_a_second_driver_out(self, log: Log, clock: ManualClock) -> None:
        """Until it is released or has expired; the error names its holder."""
        lease = log.lease(APPLICATION, "driver one", 10_000)
        with pytest.raises(LeaseTakenError, match="driver one"):
            log.lease(APPLICATION, "driver two", 10_000)
        log.lease(f"{APPLICATION}-2", "driver two", 10_000).release()
        clock.advance("9s")
        lease.renew()
        clock.advance("9s")
        with pytest.raises(LeaseTakenError, match="driver one"):
            log.lease(APPLICATION, "driver two", 10_000)
        lease.release()
        lease.release()
        log.lease(APPLICATION, "driver two", 10_000).release()

    def test_an_expired_lease_is_lost_to_the_next(self, log: Log, clock: ManualClock) -> None:
        """Its old holder is refused when it renews, and cannot release the new holder's, also one of its own name.

        A lease expires after its last renewal, however many there were.
        """
        for name in ("driver two", "driver one"):
            lease = log.lease(APPLICATION, "driver one", 10_000)
            clock.advance("11s")
            for _ in range(3):
                lease.renew()  # no other driver has taken it
            clock.advance("11s")
            with _allowed(f"{name!r} may take a lease of 10 s that was last renewed 11 s ago"):
                successor = log.lease(APPLICATION, name, 10_000)
            with pytest.raises(FencedError, match="driver one"):
                lease.renew()
            lease.release()
            with _allowed(f"{name!r} renews its lease, which its predecessor 'driver one' cannot release"):
                successor.renew()
            with pytest.raises(LeaseTakenError, match=name):
                log.lease(APPLICATION, "driver three", 10_000)
            successor.release()

    def test_a_note_under_a_lost_lease_changes_nothing(self, log: Log, clock: ManualClock) -> None:
        """A process that was frozen must not change what its successor goes by, whatever application it is about."""
        lease = log.lease(APPLICATION, "driver one", 10_000)
        lease.put_meta("beside", "note", b"one")
        assert log.get_meta("beside", "note") == b"one", "a note is there when `put_meta` of the lease returns"
        clock.advance("11s")
        lease.put_meta("beside", "note", b"still one")  # no other driver has taken it
        clock.advance("11s")
        successor = log.lease(APPLICATION, "driver two", 10_000)
        with pytest.raises(FencedError, match="driver one"):
            lease.put_meta("beside", "note", b"late")
        check(log.get_meta("beside", "note") == b"still one")
        successor.put_meta("beside", "note", b"two")
        assert log.get_meta("beside", "note") == b"two", "a note under the lease that is held replaces the one before"
        successor.release()
        with pytest.raises(FencedError, match="driver two"):
            successor.put_meta("beside", "note", b"later")

    def test_a_lease_outlives_what_was_committed(self, log: Log) -> None:
        """A reset holds the lease until everything is deleted: no driver may start in between."""
        [partition] = created(log, "in")
        lease = log.lease(APPLICATION, "the reset", 10_000)
        log.put_meta(APPLICATION, "note", b"mine")
        log.open_committer(APPLICATION, "0_0", [partition]).commit(Commit({partition: 0}, "v0"), [])
        for positions in ({partition: 0}, None):
            if positions is not None:
                log.set_positions(APPLICATION, positions)
            else:
                log.delete_commits(APPLICATION)
            with pytest.raises(LeaseTakenError, match="the reset"):
                log.lease(APPLICATION, "driver", 10_000)
            lease.renew()
        lease.release()
        log.lease(APPLICATION, "driver", 10_000).release()


@contextmanager
def _allowed(rule: str) -> Iterator[None]:
    try:
        yield
    except LogError as error:
        raise AssertionError(f"{rule}; it raised {error!r}") from error
