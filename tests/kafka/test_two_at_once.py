"""Two drivers of one application on Kafka."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..rotation import by_turns
from ..spark.surroundings import Surroundings
from ..spark.test_processes import driver, summary_of
from ..spark.test_runner import counts, records
from ..waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with KafkaBroker() as broker, Surroundings(tmp_path / "data", f"kafka:{broker.bootstrap}") as made:
        yield made


LEASE = "lease=5"
"""A third of the usual: one driver waits for another's lease twice."""


@by_turns(1, 4)
def test_a_driver_that_froze_is_shut_out_by_the_next(surroundings: Surroundings) -> None:
    """While it holds the lease nobody else may start; when it wakes up after that, it ends and has changed nothing."""
    surroundings.create(**{"in": 2, "out": 2})
    surroundings.put("in", records(100))
    options = [f"log={surroundings.log_name}", LEASE]

    def is_done(count: int) -> bool:
        return sum(map(len, surroundings.values_by_key("out").values())) >= count

    with driver(surroundings, "count()", "0s", *options) as first:
        wait_until(lambda: is_done(100) or first.poll() is not None, "the first batch", 240)
        with driver(surroundings, "count()", "available_now", *options) as refused:
            _, err = refused.communicate(timeout=120)
        assert refused.returncode != 0 and "is already run by" in err
        os.killpg(first.pid, signal.SIGSTOP)
        try:
            surroundings.put("in", records(150)[100:])
            # It waits until the lease is over, by the broker's clock.
            with driver(surroundings, "count()", "0s", *options) as second:
                wait_until(lambda: is_done(150) or second.poll() is not None, "the successor did the work", 240)
                resume(first.pid)
                _, err = first.communicate(timeout=120)
                assert first.returncode != 0 and "lost the lease" in err
                surroundings.put("in", records(180)[150:])
                wait_until(lambda: is_done(180) or second.poll() is not None, "the successor goes on", 240)
                second.terminate()
                assert summary_of(second)["records_in"] == 80
        finally:
            resume(first.pid)
    assert surroundings.values_by_key("out") == counts(180)


def resume(group: int) -> None:
    try:
        os.killpg(group, signal.SIGCONT)
    except ProcessLookupError:
        pass
