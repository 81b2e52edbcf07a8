"""Applications whose state is in a store backend of contrib: in task hosts, and with a global store."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Application, Processor, Record, Topology, key_value_store, run
from penstock.plugins.engine.task.local_state.global_copy import GlobalDirectory

from ..spark import apps
from ..spark.surroundings import Surroundings


class Keep(Processor):
    def process(self, record: Record) -> None:
        self.context.get_store("products").put(record.key, record.value)


def test_counts_go_on_after_a_restart_here_and_elsewhere(tmp_path: Path) -> None:
    backend = "contrib.rocksdb"
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 2})
        application = surroundings.application("counts", apps.count(), store_backend=backend, processes=2)
        records = [(f"k{number % 7}", "v", number) for number in range(60)]
        for number, state in enumerate(("here", "here", "elsewhere")):
            surroundings.put("in", records[20 * number : 20 * (number + 1)])
            there = application.with_settings(state_dir=str(tmp_path / state))
            assert run(there, engine="embedded").records_in == 20
        expected = {f"k{key}": [str(n + 1) for n in range(len(range(key, 60, 7)))] for key in range(7)}
        assert surroundings.values_by_key("out") == expected
        assert list((tmp_path / "here").rglob(backend)), "the state was on that backend"


@pytest.mark.parametrize(("backend", "kept"), [("contrib.rocksdb", "lmdb"), ("contrib.sqlite", "contrib.sqlite")])
def test_a_global_store_can_be_opened_by_every_process(backend: str, kept: str, tmp_path: Path) -> None:
    """RocksDB gives a directory to one writing process only; SQLite does not."""
    topology = Topology().add_source("in", "in").add_sink("out", "out", "in")
    topology.add_global_store(key_value_store("products"), "products", "products", "keep", Keep)
    application = Application("shop", topology, data_dir=str(tmp_path), store_backend=backend)
    (spec,) = application.program.global_stores
    copies = GlobalDirectory(application, spec, tmp_path / "copies")
    copies.close()
    assert [each.name for each in (tmp_path / "copies").iterdir() if each.is_dir()] == [kept]
