"""Two of the same at work on Kafka: Spark's speculative attempts on a cluster, and two drivers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..spark.surroundings import Surroundings
from ..spark.test_processes import cluster, driver, summary_of
from ..spark.test_run import counts, records
from ..waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with KafkaBroker() as broker, Surroundings(tmp_path / "data", f"kafka:{broker.bootstrap}") as made:
        yield made


def test_a_speculative_attempt_shuts_out_the_one_that_lingers(surroundings: Surroundings, tmp_path: Path) -> None:
    surroundings.create(**{"in": 4, "out": 4})
    surroundings.put("in", [*records(300), ("k6", "linger", 300), *records(400)[301:]])
    flag = tmp_path / "lingers"
    light = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    # Spark makes no second attempt on the host of the first.
    with cluster(tmp_path, light, hosts=("127.0.0.1", "127.0.0.2")) as master:
        options = [
            f"master={master}", f"log={surroundings.log_name}", "spark.executor.memory=512m",
            "spark.driver.host=127.0.0.1", f"spark.executor.extraJavaOptions={light}",
            "spark.speculation=true", "spark.speculation.quantile=0.5", "spark.speculation.multiplier=1.1",
            "spark.speculation.interval=100ms", "spark.speculation.minTaskRuntime=500ms",
        ]  # fmt: skip
        topology = f"count(LingersOnce, flag={str(flag)!r})"
        with driver(surroundings, topology, "available_now", *options) as process:
            wait_until(lambda: flag.exists() or process.poll() is not None, "a task lingers", 240)
            # Only another attempt can bring its records to an end: the first one still waits.
            wait_until(
                lambda: sum(map(len, surroundings.values_by_key("out").values())) == 400 or process.poll() is not None,
                "another attempt did its work",
                240,
            )
            assert process.poll() is None or process.returncode == 0, process.communicate()[1]
            assert not Path(f"{flag}.awake").exists()
            Path(f"{flag}.release").touch()
            summary_of(process)
    assert surroundings.values_by_key("out") == counts(400)


def test_a_driver_that_froze_is_shut_out_by_the_next(surroundings: Surroundings) -> None:
    """While it holds the lease nobody else may start; when it wakes up after that, it ends and has changed nothing."""
    surroundings.create(**{"in": 2, "out": 2})
    surroundings.put("in", records(100))
    log = f"log={surroundings.log_name}"

    def is_done(count: int) -> bool:
        return sum(map(len, surroundings.values_by_key("out").values())) >= count

    with driver(surroundings, "count()", "0s", log) as first:
        wait_until(lambda: is_done(100) or first.poll() is not None, "the first batch", 240)
        with driver(surroundings, "count()", "available_now", log) as refused:
            _, err = refused.communicate(timeout=120)
        assert refused.returncode != 0 and "is already run by" in err
        os.killpg(first.pid, signal.SIGSTOP)
        try:
            surroundings.put("in", records(150)[100:])
            # The lease ends by the broker's clock.
            wait_until(lambda: surroundings.lease_is_free(), "the lease is over", 60)
            with driver(surroundings, "count()", "0s", log) as second:
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
