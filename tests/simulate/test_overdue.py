"""No window closes before the records that wait, in histories of pauses, crashes and large steps of the clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.testing.simulation import SimulatedCluster

from ..rotation import examples
from ..runtime.test_overdue import sums_of_counts

PARTITIONS = 1  # results of two tasks may be late by the stream time of the other one's
STEPS = st.lists(
    st.sampled_from(["arrive", "arrive", "work", "work 1", "a moment", "a day", "crash", "move"]), max_size=25
)


def run(mode: str, steps: list[str]) -> None:
    """Let records arrive with the time of their arrival; at the end each of them has to be counted in a window."""
    arrived = 0
    with SimulatedCluster(sums_of_counts("20s"), mode=mode, hosts=2, partitions=PARTITIONS, key_serde="str") as cluster:

        def act(step: str) -> None:
            nonlocal arrived
            match step:
                case "arrive":
                    cluster.pipe("in", f"k{arrived % 5}", "x", timestamp=cluster.now_ms)
                    arrived += 1
                case "work":
                    cluster.work()
                case "work 1":
                    cluster.work(cluster.hosts[0])
                case "a moment" | "a day":
                    cluster.advance("3s" if step == "a moment" else "1d")
                case "crash":
                    cluster.crash(cluster.hosts[0])
                    cluster.move("0_0", cluster.start(1))
                case "move":
                    cluster.move("1_0", cluster.hosts[-1])

        for step in steps:
            act(step)
        for _ in range(5):
            cluster.advance("1d")
            cluster.settle()
        counted = [int(each.value) for each in cluster.read_all("out")]
        assert sum(counted) == arrived, "\n".join(cluster.story)


@pytest.mark.parametrize("mode", ["continuous", "batches"])
@settings(max_examples=examples(15))
@given(steps=STEPS)
def test_every_record_is_counted_in_a_window(mode: str, steps: list[str]) -> None:
    run(mode, steps)


@pytest.mark.parametrize("mode", ["continuous", "batches"])
def test_records_that_waited_over_a_pause_are_counted(mode: str) -> None:
    run(mode, ["arrive", "work", "arrive", "a day", "crash", "work", "arrive", "a day", "move", "work"])
