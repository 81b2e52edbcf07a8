"""SimulatedCluster: hosts that a test lets work, crash, freeze and lose tasks."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations

import pytest

from penstock import ConfigError, UnknownTopicError
from penstock.plugins.engine.task.logged_task import LoggedTask
from penstock.plugins.testing.simulation.history import Fault
from penstock.plugins.testing.simulation.host_world import HostWorld, Timeline
from penstock.testing.simulation import SimulatedCluster, SimulationFailure

from .planted import Change, Planted, planted
from .programs import counts, counts_with_more, suppressed

MODES = ("continuous", "batches")


def cluster_of(mode: str = "continuous", hosts: int = 2, partitions: int = 1) -> SimulatedCluster:
    return SimulatedCluster(counts(), mode=mode, hosts=hosts, partitions=partitions, key_serde="str", value_serde="int")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("when", "operation"), [("before", "commit"), ("after", "commit"), ("before", "fetch")])
def test_a_record_counts_once_if_a_host_crashes_at_an_operation(mode: str, when: str, operation: str) -> None:
    with cluster_of(mode) as cluster:
        cluster.pipe("in", "ann", 1, 5)
        cluster.work()
        cluster.pipe("in", "ann", 2, 6)
        cluster.crash(1, **{when: operation})
        cluster.work(1)
        assert cluster.hosts == [2]
        cluster.settle()
        assert cluster.read_pairs("out") == [("ann", 1), ("ann", 2)]
        cluster.check_state()


def a_zombie_processes_with_the_state_of_its_successor(mode: str) -> None:
    with SimulatedCluster(
        suppressed(), mode=mode, hosts=1, partitions=1, key_serde="str", value_serde="int"
    ) as cluster:
        cluster.pipe("in", "ann", 1, 0)
        cluster.work(1)
        cluster.pipe("in", "bob", 1, 1_000)
        cluster.freeze(1, after="fetch")
        cluster.work(1)
        cluster.start(1)
        cluster.move("0_0", 2)
        cluster.work(2)
        cluster.wake(1)  # of what it lets go now, its successor has deleted the entry
        cluster.settle()
        assert cluster.read_pairs("out") == [("ann", 1)]


@pytest.mark.parametrize("mode", MODES)
def test_a_processor_that_fails_at_state_of_a_successor_on_its_machine_is_no_failure(mode: str) -> None:
    a_zombie_processes_with_the_state_of_its_successor(mode)
    counts_as_failure = Change(LoggedTask, "cause_of", "_MAY_BE_OF_SUCCESSOR", "_MAY_BE_OF_SUCCESSOR[:3]")
    with planted(Planted("", (counts_as_failure,))), pytest.raises(SimulationFailure, match="has no attribute 'new'"):
        a_zombie_processes_with_the_state_of_its_successor(mode)


@pytest.mark.parametrize("order", permutations((1, 2, 3)))
def test_hosts_that_froze_in_their_commits_wake_in_any_order(order: tuple[int, ...]) -> None:
    with cluster_of(hosts=4) as cluster:
        cluster.pipe("in", "ann", 1, 5)
        for host in (1, 2, 3):
            cluster.move("0_0", host)
            cluster.freeze(host, before="commit")
            cluster.work(host)
        cluster.move("0_0", 4)
        cluster.work(4)
        for host in order:
            cluster.wake(host)
        assert [line.split(maxsplit=2)[2] for line in cluster.story if line.endswith("wakes")] == [
            f"host {host} wakes" for host in order
        ]
        cluster.settle()
        assert cluster.read_pairs("out") == [("ann", 1)]
        cluster.check_state()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_host_that_is_cut_off_in_its_commit_does_not_guess_the_outcome(mode: str, when: str) -> None:
    with cluster_of(mode) as cluster:
        cluster.pipe("in", "ann", 1, 5)
        cluster.work(1)
        cluster.pipe("in", "ann", 1, 5)
        cluster.cut_off(1, **{when: "commit"})
        cluster.work(1)
        assert cluster.hosts == [1, 2]
        assert len(cluster.read_pairs("out")) == (2 if when == "after" else 1)
        cluster.settle()
        assert cluster.outputs()["out"] == [("ann", 1, 5, ()), ("ann", 2, 5, ())]


def test_what_cannot_be_says_what_to_do() -> None:
    with cluster_of() as cluster:
        with pytest.raises(ConfigError, match="host 7: expected a host that has not died .1, 2.; `start` starts"):
            cluster.work(7)
        with pytest.raises(ConfigError, match="host 1 is not frozen: `freeze`"):
            cluster.wake(1)
        with pytest.raises(ConfigError, match="task '3_1': expected one of 0_0"):
            cluster.move("3_1", 1)
        with pytest.raises(ConfigError, match="expected one of 'commit', 'take', 'fetch', 'ask', found 'flush'"):
            cluster.crash(1, before="flush")
        with pytest.raises(ConfigError, match="before, after: expected one"):
            cluster.crash(1, before="commit", after="commit")
        with pytest.raises(UnknownTopicError, match="no source reads topic 'inn'; did you mean 'in'"):
            cluster.pipe("inn", "ann", 1)
        with pytest.raises(ConfigError, match="time does not go back"):
            cluster.advance(timedelta(seconds=-1))
        with pytest.raises(ConfigError, match="machine 3: expected 1 to 2"):
            cluster.start(3)
        cluster.crash(2, after="commit")
        with pytest.raises(ConfigError, match="host 2 never came to 'commit', where it dies: let it `work`"):
            cluster.settle()
    with pytest.raises(ConfigError, match="mode of a simulation"):
        cluster_of("sometimes")
    with pytest.raises(ConfigError, match="hosts of a simulation: expected a number from 1 on, found 0"):
        cluster_of(hosts=0)


def test_a_host_that_crashes_or_is_closed_while_frozen_leaves_nothing() -> None:
    with cluster_of() as cluster:
        cluster.pipe("in", "ann", 1, 5)
        cluster.freeze(1, before="commit")
        cluster.work(1)
        with pytest.raises(ConfigError, match="host 1 is frozen: `wake` it first"):
            cluster.work(1)
        cluster.crash(1)
        assert cluster.hosts == [2]
        assert cluster.start(1) == 3
        cluster.freeze(3)
        cluster.move("0_0", 3)
        cluster.work(3)


@pytest.mark.parametrize("mode", MODES)
def test_a_host_whose_records_were_deleted_after_another_one_read_them_is_refused_as_any_other(mode: str) -> None:
    with cluster_of(mode) as cluster:
        cluster.pipe("in", "ann", 1, 5)
        cluster.freeze(1, before="fetch")
        cluster.work(1)
        cluster.move("0_0", 2)
        cluster.work(2)
        cluster.purge(also_sources=True)
        assert "the records of in-0 before 1 are deleted" in cluster.story[-1]
        cluster.wake(1)
        cluster.settle()
        assert cluster.read_pairs("out") == [("ann", 1)]


@pytest.mark.parametrize("mode", MODES)
def test_a_host_of_an_earlier_program_leaves_no_copy_without_the_stores_of_the_present_one(mode: str) -> None:
    with cluster_of(mode) as cluster:
        cluster.move("0_0", 2)
        cluster.freeze(2, before="take")
        cluster.work(2)
        cluster.deploy(counts_with_more())  # hosts 3 and 4, on the machines of 1 and 2
        cluster.pipe("in", "ann", 1, 5)
        cluster.work(3)
        cluster.wake(2)  # it takes the fence, and would restore the stores that it knows
        cluster.work()
        cluster.move("0_0", 4)
        cluster.settle()
        assert cluster.read_pairs("out") == [("ann", 1)]
        cluster.check_state()


def test_a_host_of_an_earlier_program_gets_no_task() -> None:
    with cluster_of() as cluster:
        cluster.freeze(1, before="take")
        cluster.work(1)
        cluster.deploy(counts_with_more())
        cluster.wake(1)
        with pytest.raises(ConfigError, match="host 1 runs the program that was there before `deploy`"):
            cluster.move("0_0", 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_zombie_that_restores_the_copy_of_its_successor_makes_no_wrong_answer(mode: str) -> None:
    with cluster_of(mode) as cluster:
        cluster.move("0_0", 2)
        cluster.pipe("in", "ann", 1, 5)
        cluster.pipe("in", "bob", 1, 6)
        cluster.work(2)
        cluster.move("0_0", 1)
        cluster.freeze(1, after="take")
        cluster.freeze(1, before="fetch")
        cluster.work(1)
        beside = cluster.start(1)
        cluster.move("0_0", beside)
        cluster.pipe("in", "ann", 1, 7)
        cluster.work(beside)
        cluster.wake(1)  # it begins to restore the copy on this machine to the commit that it found
        cluster.pipe("in", "bob", 1, 8)
        cluster.work(beside)
        cluster.settle()
        assert cluster.read_pairs("out") == [("ann", 1), ("bob", 1), ("ann", 2), ("bob", 2)]
        cluster.check_state()


def test_a_driver_that_wakes_when_another_one_has_its_lease_ends() -> None:
    with cluster_of("batches") as cluster:
        cluster.pipe("in", "ann", 1, 5)
        cluster.work()
        assert cluster.read_values("out") == [1]
        (first,) = cluster._cluster.drivers
        cluster._faults.arm(first, Fault("freezes", "asks"))
        cluster.pipe("in", "ann", 1, 6)
        cluster.work(1)
        assert first.is_frozen
        cluster.advance("10s")
        cluster.work(1)  # the lease has not ended, so nothing is planned
        assert cluster.read_values("out") == []
        cluster.advance("10s")
        cluster.work(1)
        assert cluster.read_values("out") == [2]
        cluster._cluster.wake(first)  # it plans to its end, which is past
        cluster.work(1)
        assert cluster.story[-1].endswith("driver 1 ends: another one has the lease")
        cluster.settle()
        assert cluster.read_values("out") == []


def test_replicas_of_tasks_follow_and_one_becomes_local_state() -> None:
    with SimulatedCluster(counts(), partitions=1, replicas=True, key_serde="str", value_serde="int") as cluster:
        cluster.pipe("in", "ann", 1, 5)
        cluster.work(1)
        cluster.follow(2)
        cluster.power_off(1)
        for host in list(cluster._cluster.followers + cluster._cluster.hosts):
            cluster.crash(2) if str(host) == "host 2" else cluster._cluster.end(host)
        cluster._cluster.adopt("0_0", 1)
        assert any("the replica of task 0_0 becomes its local state on machine 2" in line for line in cluster.story)
        cluster.pipe("in", "ann", 1, 6)
        cluster.settle()
        assert cluster.read_values("out") == [1, 2]
        cluster.check_state()
    with cluster_of() as cluster:
        with pytest.raises(ConfigError, match="make it with replicas=True"):
            cluster.follow(1)
        with pytest.raises(ConfigError, match="make it with standbys=True"):
            cluster.stand_by(1)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_task_moves_to_a_standby(is_frozen: bool) -> None:
    with SimulatedCluster(counts(), partitions=1, standbys=True, key_serde="str", value_serde="int") as cluster:
        cluster.pipe("in", "ann", 1, 5)
        cluster.work(1)
        cluster.stand_by(2)
        if is_frozen:
            (standby,) = cluster._cluster.standbys
            cluster._faults.arm(standby, Fault("freezes", "asks"))
            cluster.advance("1m")
            cluster.stand_by(2)
            assert standby.is_frozen
        cluster.crash(1)
        cluster.move("0_0", 2)
        cluster.pipe("in", "ann", 1, 6)
        cluster.settle()
        assert cluster.read_values("out") == [1, 2]
        cluster.check_state()


def test_what_a_host_waits_for_is_done_before_its_other_calls() -> None:
    world, done = HostWorld(Timeline()), list[str]()
    pool = world.world.threads(2, "pool")
    other, waited = (pool.submit(done.append, name) for name in ("other", "waited for"))
    world.world.wait([waited])
    assert done == ["waited for"] and not other.done()
