"""The continuous mode on real Spark while a broker stands still: tasks wait, and go on when it does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.testing.kafka_broker import KafkaBroker

from . import apps
from .surroundings import Surroundings
from .test_continuous import KEYS
from .test_hosts import fresh, hosts, running

pytestmark = pytest.mark.spark

FROZEN_SECONDS = 5.0
"""Longer than heartbeats may be missing."""
SESSION_MS = 30_000
"""Longer than it is frozen, as brokers' sessions are (9 s is the default, and the tests' brokers have 3 s): a cluster
whose controller has shut its only broker out names no broker to its clients, and they may need minutes to come back."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker that keeps its session while it is frozen."""
    with KafkaBroker(tmp_path / "kafka", options={"broker.session.timeout.ms": str(SESSION_MS)}) as own:
        yield own


def test_nothing_is_lost_or_counted_twice(tmp_path: Path, spark: Any, broker: KafkaBroker) -> None:
    with Surroundings(tmp_path / "data", f"kafka:{broker.bootstrap}") as surroundings:
        name = fresh("frozen")
        source, sink = f"{name}-in", f"{name}-out"
        surroundings.create(**{source: 4, sink: 2})
        topology = apps.count(source=source, sink=sink)
        application = surroundings.application(name, topology, commit_interval="50ms", changelog="topic:")

        def send(count: int) -> None:
            surroundings.put(source, [(f"k{number % KEYS}", "v", number) for number in range(count)])

        def counted() -> int:
            return sum(map(len, surroundings.values_by_key(sink).values()))

        with running(application, spark, "continuous") as run:
            send(200)
            run.wait(lambda: counted() == 200, "the first records")
            before = {each.pid for each in hosts(name)}
            send(2_000)
            broker.freeze()
            try:
                ends_at = time.monotonic() + FROZEN_SECONDS
                run.wait(lambda: time.monotonic() > ends_at, "the end of the standstill")
            finally:
                broker.resume()
            run.wait(lambda: counted() >= 2_200, "what was under way")
            send(200)
            run.wait(lambda: counted() >= 2_400, "what came later")
            assert {each.pid for each in hosts(name)} == before
            summary = run.stop()
        assert (summary.records_in, summary.workers_lost, summary.lag) == (2_400, 0, 0)
        for key, found in surroundings.values_by_key(sink).items():
            assert found == [str(number) for number in range(1, len(found) + 1)], key
        assert counted() == 2_400
