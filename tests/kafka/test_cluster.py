"""An application whose setting leads to another Kafka cluster than before."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock import IncompatibleStateError
from penstock.plugins.engine.program.reset import plan_reset, reset, to_earliest
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .shop import Shop


def test_another_cluster_is_refused_and_taken_after_a_reset(broker: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(broker.bootstrap, tmp_path)
    shop.sell(("ann", 1))
    shop.run()
    shop.run()
    with KafkaBroker() as other:
        moved = shop.application.with_settings(log=f"kafka:{other.bootstrap}")
        with closing(open_log(moved.settings)) as there, shop.log() as here:
            ids = here.cluster_id(), there.cluster_id()
            assert all(ids) and ids[0] != ids[1]
            there.create_topic(shop.orders, 1)
            there.create_topic(shop.totals, 1)
            empty = rf"ran on cluster '{ids[0]}' with the local state of this machine, and .* cluster '{ids[1]}', which"
            with pytest.raises(IncompatibleStateError, match=empty):
                shop.run(log=f"kafka:{other.bootstrap}")
            for note in (notes.PROGRAM, notes.CLUSTER):  # as a mirror of the application's own topics does
                there.put_meta(shop.id, note.name, here.get_meta(shop.id, note.name) or b"")
            mirrored = f"ran on cluster '{ids[0]}', and .* is on cluster '{ids[1]}': its positions"
            with pytest.raises(IncompatibleStateError, match=mirrored):
                shop.run(log=f"kafka:{other.bootstrap}")
            reset(moved, there, plan_reset(moved, there, to_earliest), lambda: None)
        shop.run(log=f"kafka:{other.bootstrap}")
        shop.run(log=f"kafka:{other.bootstrap}")
