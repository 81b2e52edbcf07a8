"""With a changelog in a directory, a host that wakes after its successor has worked does no harm, and a log that has
lost its positions is found out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import duration_ms
from penstock.plugins.engine.task.logged_task import LoggedTask
from penstock.plugins.testing.simulation.history import Fault
from penstock.plugins.testing.simulation.host_world import UPKEEP
from penstock.testing.simulation import SimulatedCluster, SimulationFailure

from .planted import PLANTED, Change, Planted, planted
from .programs import counts


class DiskCluster(SimulatedCluster):
    """Two hosts with one task. It writes a file for each delta, and snapshots when these outgrow a floor."""

    def __init__(self, floor: int, mode: str = "batches") -> None:
        super().__init__(
            counts(), mode=mode, partitions=1, changelog_grace="500ms", key_serde="str", value_serde="int",
            changelog=f"directory:?snapshot_floor_bytes={floor}&segment_bytes=1",
        )  # fmt: skip

    def freeze_at(self, host: int, fault: Fault) -> None:
        """Let a host freeze at an operation on the disk."""
        self._faults.arm(self._live(host), fault)

    def set_ahead(self, host: int, duration: str) -> None:
        """Set a host's clock ahead of the others'."""
        self._live(host).world.ahead_ms = duration_ms(duration)

    def process(self, key: str, *, host: int) -> None:
        """Let a record arrive, and a host process it."""
        self.pipe("in", key, 1)
        self.work(host)

    def work_without_upkeep(self, host: int) -> None:
        """Let a host work, but not the threads that write snapshots and clean."""
        working = self._live(host)
        for _ in range(5):
            self._cluster.work(working)
            others = [number for number, call in enumerate(working.world.calls) if call.pool != UPKEEP]
            if others:
                self._cluster.run_call(working, others[0])


def a_zombie_cleans() -> None:
    """Host 1 freezes when its snapshot is written; when it goes on to clean, its successor has committed twice.

    Its clock is ahead: all files are old to it.
    """
    with DiskCluster(floor=1) as cluster:
        cluster.set_ahead(1, "5s")
        cluster.process("ann", host=1)
        cluster.freeze_at(1, Fault("freezes", "completes 2.snapshot", after=True))
        cluster.process("ann", host=1)
        cluster.move("0_0", 2)
        cluster.process("bob", host=2)
        cluster.process("cid", host=2)
        cluster.wake(1)
        cluster.settle()
        cluster.check_state()
        assert "host 1 freezes after it completes 2.snapshot of task 0_0" in "\n".join(cluster.story)


def a_zombie_writes_a_delta() -> None:
    """Host 1 freezes before its delta has a name; its successor has committed other records as the same counter."""
    with DiskCluster(floor=1_000_000) as cluster:
        cluster.process("ann", host=1)
        cluster.freeze_at(1, Fault("freezes", "completes 2.delta"))
        cluster.process("ann", host=1)
        cluster.move("0_0", 2)
        cluster.process("bob", host=2)
        cluster.wake(1)
        cluster.settle()
        cluster.check_state()
        assert "host 1 freezes before it completes 2.delta of task 0_0" in "\n".join(cluster.story)


def a_commit_overtakes_a_snapshot() -> None:
    """A snapshot is due, and its thread begins only when the next commit is made."""
    with DiskCluster(floor=1, mode="continuous") as cluster:
        cluster.process("ann", host=1)
        cluster.advance("6s")
        for key in ("bob", "cid"):
            cluster.pipe("in", key, 1)
            cluster.work_without_upkeep(1)
            (call,) = cluster._live(1).world.calls
            assert call.pool == UPKEEP
            if key == "bob":
                cluster._cluster.run_call(cluster._live(1), 0)  # it looks whether a snapshot is due
                cluster.work_without_upkeep(1)
        cluster.work(1)
        assert any("completes 2.snapshot" in line or "completes 3.snapshot" in line for line in cluster.story)
        cluster.settle()
        cluster.check_state()


HISTORIES = {
    a_zombie_cleans: "a zombie cleans what its successor needs",
    a_commit_overtakes_a_snapshot: "a snapshot has the name of a later version",
    a_zombie_writes_a_delta: "two processes give a version the same name",
}
"""By history, the planted fault that takes out what protects the successor."""


@pytest.mark.parametrize("history", HISTORIES, ids=lambda each: each.__name__)
def test_a_successor_keeps_its_state(history: Callable[[], None]) -> None:
    history()


@pytest.mark.parametrize("history", HISTORIES, ids=lambda each: each.__name__)
def test_a_successor_loses_its_state_without_what_protects_it(history: Callable[[], None]) -> None:
    with planted(PLANTED[HISTORIES[history]]), pytest.raises(SimulationFailure):
        history()


@pytest.mark.parametrize("kept", range(3))
def test_either_of_counters_and_fence_keeps_a_zombie_from_cleaning(kept: int) -> None:
    """The fence is asked before the files are listed and after; counters protect where a host freezes behind it."""
    some = tuple(each for number, each in enumerate(PLANTED[HISTORIES[a_zombie_cleans]].changes) if number != kept)
    with planted(Planted("", some)):
        a_zombie_cleans()


def log_loses_positions() -> list[int]:
    """The log forgets what was committed; the task is opened on another machine. Return the answers."""
    with DiskCluster(floor=1_000_000) as cluster:
        cluster.process("ann", host=1)
        cluster.process("ann", host=1)
        with cluster._log.without_commits(cluster.application.id):
            cluster._cluster.known.clear()  # the driver is another one, too
            cluster.crash(1)
            cluster.move("0_0", 2)
            cluster.work(2)
            return cluster.read_values("out")


def test_a_log_that_has_lost_its_positions_is_refused() -> None:
    with pytest.raises(SimulationFailure, match="the log has no commit of it, but its changelog proves one"):
        log_loses_positions()
    unnoticed = Change(LoggedTask, "_make_first", "(proven := state.proven())", "(proven := set())")
    with planted(Planted("", (unnoticed,))):
        assert log_loses_positions() == [1, 2, 1, 2]
