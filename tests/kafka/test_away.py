"""A broker that is not there, goes away, or does not let us in: what is said, and that nothing is lost or counted twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.errors import LogError
from penstock.plugins.logs.kafka import KafkaLog, committers
from penstock.plugins.spark.control import Control, ControlFile
from penstock.plugins.spark.planner import BatchPlanner
from penstock.plugins.spark.preparation import prepare
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..bad_input.world import says
from ..waiting import wait_until
from .shop import Shop, again, drain

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("test_away")]

NOBODY = "127.0.0.1:1"
"""Nothing listens at port 1."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(credentials=("anna", "the secret")) as broker:
        yield broker


@pytest.fixture
def running(own: KafkaBroker) -> Iterator[KafkaBroker]:
    yield own
    own.start()


# ---------------------------------------------------------------- at the start


def test_nobody_there(tmp_path: Path) -> None:
    shop = Shop(NOBODY, tmp_path, create=False, task_timeout="1s")
    began = time.monotonic()
    with pytest.raises(LogError) as caught:
        shop.run()
    assert 0.9 < time.monotonic() - began < 5
    says(
        caught.value, f"Kafka at {NOBODY}", "did not answer for 1 s (task_timeout)", "Connection refused", "start again"
    )


PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "anna"}


@pytest.mark.parametrize(
    ("port", "settings", "message"),
    [
        ("sasl", {**PLAIN, "sasl.password": "wrong one"}, "the credentials are refused"),
        ("plain", {**PLAIN, "sasl.password": "wrong one"}, "the credentials are refused"),
        ("plain", {"security.protocol": "SSL"}, "check security.protocol and the ssl.* client settings"),
    ],
    ids=["wrong password", "no authentication there", "no TLS there"],
)
def test_not_let_in(own: KafkaBroker, port: str, settings: dict[str, str], message: str) -> None:
    where = own.sasl_bootstrap if port == "sasl" else own.bootstrap
    log = KafkaLog(where, settings)
    began = time.monotonic()
    with pytest.raises(LogError) as caught:
        log.topics()
    # The time limit is five minutes.
    assert time.monotonic() - began < 20
    says(caught.value, f"Kafka at {where}", message)
    assert "wrong one" not in str(caught.value)
    log.close()


def test_authentication_missing(own: KafkaBroker) -> None:
    log = KafkaLog(own.sasl_bootstrap, {"task.timeout.ms": "1000"})
    with pytest.raises(LogError) as caught:
        log.topics()
    says(caught.value, "did not answer for 1 s", "security.protocol")
    log.close()


def test_right_credentials(own: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(own.sasl_bootstrap, tmp_path, clients={**PLAIN, "sasl.password": "the secret"})
    shop.sell(("ann", 1))
    shop.is_exact()


# ---------------------------------------------------------------- while running


class Running:
    """An application in the middle of its work: one order is processed, others wait."""

    def __init__(self, broker: KafkaBroker, directory: Path, stack: ExitStack) -> None:
        self.shop = Shop(broker.bootstrap, directory, task_timeout="60s")
        self.shop.sell(("ann", 1))
        self.log, self.worker = stack.enter_context(self.shop.worker())
        drain(self.log, self.worker)
        wait_until(lambda: self.shop.position(self.log) == 1)
        self.lease = self.log.lease(self.shop.id, "this test", 600_000)
        control = directory / self.shop.id
        ControlFile(control).write(Control())
        self.planner = BatchPlanner(prepare(self.shop.application, self.log).plan(1, control), self.log)
        self.shop.sell(*[("ann", 2), ("bob", 3)] * 50)
        self.ends = self.log.end_offsets(self.worker.partitions)

    def everything(self) -> list[Callable[[], object]]:
        """Return what a driver and its workers do all the time."""
        return [
            lambda: self.worker.run_batch(self.ends, 0),
            lambda: self.planner.next(self.planner.first(), None),
            self.lease.renew,
            self.log.topics,
        ]

    def is_done(self) -> bool:
        """Return whether the commit is there: positions of a transaction are seen a moment after it."""
        return self.shop.position(self.log) == self.ends[self.worker.partitions[0]]


def test_away(running: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committers, "_STUCK_SECONDS", 1.0)
    with ExitStack() as stack:
        hasty, patient = Running(running, tmp_path, stack), Running(running, tmp_path, stack)
        # As if task_timeout were "1s", which may be too short to get here on a busy machine.
        hasty.log._clients.patience.timeout_s = 1.0
        running.kill()
        for doing in hasty.everything():
            with pytest.raises(LogError) as caught:
                doing()
            says(
                caught.value,
                f"Kafka at {running.bootstrap}",
                "did not answer for 1 s (task_timeout)",
                "nothing is lost",
            )
        starting = threading.Thread(target=running.start)
        starting.start()
        # An old purge may get lost: there will be another one.
        patient.log.purge(patient.worker.partitions[0], 1)
        for doing in patient.everything():
            again(doing)
        starting.join()
        wait_until(patient.is_done)
        assert hasty.shop.position(hasty.log) == 1
        assert hasty.shop.sold(hasty.log) == [("ann", "1")]
        hasty.log._clients.patience.timeout_s = 60.0
        hasty.lease.renew()
        again(lambda: hasty.worker.run_batch(hasty.ends, 0))
        wait_until(hasty.is_done)
        for each in (hasty, patient):
            assert sorted(each.shop.sold(each.log)) == sorted(each.shop.expected)
