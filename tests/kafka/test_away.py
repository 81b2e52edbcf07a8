"""A broker that is not there, goes away, or does not let us in: what is said, and that nothing is lost or counted
twice."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.errors import LogError
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.run.planning.control import Control, ControlFile, PlannedApplication
from penstock.plugins.engine.run.planning.planner import BatchPlanner
from penstock.plugins.logs.kafka import failures, transactions
from penstock.plugins.logs.kafka.clients import Clients
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..bad_input.world import says
from ..processes import python
from ..rotation import by_turns
from ..waiting import wait_until
from .clients import make_topic
from .early_starter import ORDERS, TOTALS
from .late_broker import start_before
from .shop import Shop, again, drain
from .ways import WAYS

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
    # The usual task_timeout is five minutes.
    assert 0.9 < time.monotonic() - began < 60
    says(
        caught.value, f"Kafka at {NOBODY}", "did not answer for 1 s (task_timeout)", "Connection refused", "start again"
    )


def test_no_request_before_a_broker_answers() -> None:
    clients = Clients(NOBODY, {"task.timeout.ms": "500"})

    def ask(client: AdminClient, asked: object, *, request_timeout: float) -> Any:
        raise AssertionError("nobody has answered")

    with pytest.raises(LogError) as caught:
        clients.admin.one("asking", ask, None)
    says(caught.value, f"Kafka at {NOBODY}", "while asking", "Connection refused")


def test_too_many_open_files() -> None:
    """Whichever of a client's files it is that cannot be opened, the error says so at once."""
    # In a program of its own: librdkafka does not survive a fork of a process that has had a client.
    with python("tests.kafka.few_files", NOBODY) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    said = out.splitlines()
    assert len(said) == 14
    short = [each for each in said if "did not answer" not in each]
    assert short
    for each in short:
        says(each, "LogError: ", f"Kafka at {NOBODY}", "the limit of this process is", "ulimit -n")


def client_threads() -> set[str]:
    """Return librdkafka's threads in this process, by number."""
    found = set()
    for number in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it has just ended
            if Path(f"/proc/self/task/{number}/comm").read_text().startswith("rdk:"):
                found.add(number)
    return found


def test_a_request_without_an_answer_goes_with_its_client(running: KafkaBroker) -> None:
    clients = Clients(running.bootstrap, {"task.timeout.ms": "1500"})
    asked: list[int] = []

    def ask(client: AdminClient, groups: list[str], *, request_timeout: float) -> Any:
        asked.append(id(client))
        return client.describe_consumer_groups(groups, request_timeout=request_timeout)

    before = client_threads()
    clients.admin.list_topics("asking")
    its_threads = client_threads() - before
    running.freeze()
    try:
        with pytest.raises(LogError, match="did not answer for 1.5 s .* while asking"):
            clients.admin.one("asking", ask, ["nobody"])
    finally:
        running.resume()
    assert asked and its_threads
    # Its threads are gone, and its request with them. Those of earlier tests' clients come and go meanwhile.
    wait_until(lambda: not client_threads() & its_threads)
    clients.patience.timeout_s = 60.0
    assert not clients.admin.one("asking", ask, ["nobody"]).members


@by_turns(0, 2)
@pytest.mark.parametrize("way", WAYS[-1:], indirect=True)  # processes of their own choose for themselves
def test_a_start_before_the_broker(running: KafkaBroker, tmp_path: Path) -> None:
    """`python -m tests.kafka.late_broker` does it with waits as long as they are."""
    for topic in (ORDERS, TOTALS):
        make_topic(running.bootstrap, topic)
    running.kill()
    with ExitStack() as stack:
        starts = start_before(running, stack, tmp_path, [1, 2.5, 4], try_seconds=0.5)
        running.kill()
        waits = [sum("waiting" in line for line in start.lines) for start in starts]
        for start in starts:
            start.ask("again")
        wait_until(lambda: all(start.waits() > before for start, before in zip(starts, waits, strict=True)))
        running.start()
        for start in starts:
            start.says("asked")
            start.ends()
        assert [start.problem for start in starts] == [""] * 3
        says(starts[0].lines[0], f"waiting for Kafka at {running.bootstrap}, for ", "task_timeout", "refused")


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
    assert time.monotonic() - began < 60
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
        self.planner = BatchPlanner(
            PlannedApplication.of(prepare(self.shop.application, self.log), 1, str(control)), self.log
        )
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
    monkeypatch.setattr(transactions, "_STUCK_SECONDS", 1.0)
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


def test_what_a_connection_said_is_no_reason_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers that are back may still not do what is asked for; then that is the reason."""
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    patience = failures.Patience("Kafka at x", 130)

    def call(seconds: float) -> None:
        if now < 105:
            patience.note_connection_error(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
        else:
            sleep(seconds)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "No answer"))

    with pytest.raises(LogError, match="did not answer for 130 s .* while asking: No answer"):
        patience.call("asking", call)
    said = [each.getMessage().rpartition(": ")[2] for each in caplog.records if "waiting for" in each.getMessage()]
    assert said == ["Connection refused", "No answer"]


def test_a_try_that_the_deadline_cuts_short_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that answers with an error each time may be too slow for the last try, which has a part of a second."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    tries = []

    def call(seconds: float) -> None:
        tries.append(seconds)
        sleep(min(seconds, 0.6))
        if seconds < 0.6:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in 0 s"))
        raise KafkaException(KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT, "unstable"))

    with pytest.raises(LogError, match="a transaction has not ended .*find-hanging"):
        failures.Patience("Kafka at x", 1.0).call("asking", call)
    assert tries[0] == 1.0 and tries[-1] < 0.6
