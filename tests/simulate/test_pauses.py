"""A pause that a backup asks for: all hosts commit and rest at the same time, and go on by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import OutputBatch
from penstock.plugins.engine.task.own_topics import REQUESTS, Pause, ask_for_pause
from penstock.testing.simulation import SimulatedCluster

from .programs import counts


def cluster_of(mode: str) -> SimulatedCluster:
    given: dict[str, Any] = {"key_serde": "str", "value_serde": "int", "commit_interval": "1h"}
    return SimulatedCluster(counts(), mode=mode, hosts=2, partitions=2, **given)


def ask(cluster: SimulatedCluster, in_ms: int, for_ms: int) -> None:
    now_ms = cluster._timeline.now_ms()
    ask_for_pause(cluster._log, cluster.application.id, Pause(now_ms + in_ms, now_ms + in_ms + for_ms))


def test_tasks_commit_and_rest_until_the_pause_is_over() -> None:
    with cluster_of("continuous") as cluster:
        cluster.pipe("in", "ann", 1)
        cluster.work()
        ask(cluster, 3_000, 500)
        cluster.advance("2500ms")
        cluster.pipe("in", "ann", 1)
        cluster.work()
        assert cluster.read_values("out") == [1]  # the second one is not committed before an hour is over
        cluster.advance("600ms")
        cluster.pipe("in", "ann", 1)
        for _ in range(3):
            cluster.work()
        assert cluster.read_values("out") == [2]
        cluster.advance("500ms")
        cluster.settle()
        assert cluster.read_values("out") == [3]


def test_no_batch_begins_in_a_pause() -> None:
    with cluster_of("batches") as cluster:
        cluster.work()
        ask(cluster, 3_000, 500)
        cluster.advance("3100ms")
        cluster.pipe("in", "ann", 1)
        began = cluster._timeline.seconds()
        cluster.work()
        assert cluster.read_values("out") == [1]
        assert 0.3 < cluster._timeline.seconds() - began < 0.6


@pytest.mark.parametrize("for_ms", [3_600_000, -1])
def test_no_request_stops_an_application_for_long(for_ms: int) -> None:
    with cluster_of("continuous") as cluster:
        cluster.work()
        ask(cluster, 2_100, for_ms)
        cluster.advance("2s")
        cluster.work()
        cluster.advance("200ms")
        cluster.pipe("in", "ann", 1)
        cluster.work()
        found = [cluster.read_values("out")]
        cluster.advance("10s")
        cluster.work()
        found.append(cluster.read_values("out"))
        assert found == ([[1], []] if for_ms < 0 else [[], [1]])


def test_a_clock_that_is_set_back_makes_no_pause_longer() -> None:
    with cluster_of("continuous") as cluster:
        cluster.work()
        ask(cluster, 2_100, 1_000)
        cluster.advance("2s")
        cluster.work()
        cluster.advance("1s")
        cluster.work()
        for host in cluster._cluster.live():
            host.world.ahead_ms -= 950
        cluster.pipe("in", "ann", 1)
        cluster.advance("900ms")
        cluster.work()
        assert cluster.read_values("out") == []
        cluster.advance("120ms")
        cluster.work()
        assert cluster.read_values("out") == [1]


@pytest.mark.parametrize("value", [None, b"{", b'{"from_ms": 1}', b'{"visit": "x"}'])
def test_a_request_of_another_release_counts_for_nothing(value: bytes | None) -> None:
    with cluster_of("continuous") as cluster:
        cluster.work()
        ask(cluster, 2_100, 10_000)
        cluster._log.append(OutputBatch(REQUESTS.of(cluster.application.id), [b"pause"], [value], [1]))
        cluster.advance("2200ms")
        cluster.work()
        cluster.pipe("in", "ann", 1)
        cluster.work()
        assert cluster.read_values("out") == [1]
