"""Records of a source topic that an open transaction holds back: they count as lag, and the log names the topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock import TopicPartition, run
from penstock.plugins.engine.program.lag import HeldBack, held_back, present_lag
from penstock.plugins.operate.cli.status import _show_lag
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .clients import QUIET
from .names import fresh_name
from .shop import Shop

pytestmark = pytest.mark.broker


def test_an_open_transaction_of_a_source_topic(
    broker: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(broker.bootstrap, tmp_path, engine="embedded")
    partition = TopicPartition(shop.orders, 0)
    shop.sell(("ann", 1))
    assert run(shop.application).lag == 0
    open_one = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": fresh_name("upstream"), **QUIET})
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce(shop.orders, b"2", b"bob", partition=0)
    open_one.flush(30)
    shop.sell(("ann", 1))  # it waits behind the transaction
    assert run(shop.application).lag == 2, "nothing can be read, and that is no reason to say that nothing waits"
    with shop.log() as log:
        [lag] = present_lag(shop.application, log)
        assert (lag.position, lag.end, lag.lag, lag.held) == (1, 3, 2, 2)
        assert held_back([lag]) == f"2 held back by open transactions in '{shop.orders}'"
        _show_lag(shop.application, [lag], 2, as_json=False, follow=False)
        assert capsys.readouterr().out.splitlines()[-1].split() == ["total", "2", "2"]
        watch = HeldBack(shop.id)
        for _ in range(3):
            watch.look(log, [partition])
        [said] = [each.getMessage() for each in caplog.records if "transaction is open there" in each.getMessage()]
        assert f"2 records of {partition}, from offset 1 on, cannot be read" in said
        open_one.abort_transaction(30)
        run(shop.application)
        [lag] = present_lag(shop.application, log)
        assert (lag.lag, lag.held, held_back([lag])) == (0, 0, "")
        watch.look(log, [partition])
