"""Processors of contrib keep what they know of a key when the number of partitions changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Application, Topology
from penstock.plugins.state.transfer.reshard import accept

from .runs import lease, new_log, outputs, produce, resharded, run, settings

KEYS = [f"key {number}" for number in range(13)]


@pytest.mark.parametrize(
    ("processor", "options", "passed"),
    [("contrib.dedupe", {"window": "1h"}, 1), ("contrib.rate_limit", {"limit": 3, "per": "1h"}, 3)],
)
def test_a_key_goes_on_where_it_was(processor: str, options: dict[str, Any], passed: int, tmp_path: Path) -> None:
    def application(count: int) -> Application:
        topology = Topology().add_source("in", f"in-{count}").add_processor("p", processor, "in", **options)
        own = settings(tmp_path, "topic:") | {"state_serde": "msgpack"}
        return Application("shop", topology.add_sink("out", "out", "p"), **own)

    log = new_log({"in-4": 4, "in-3": 3, "out": 1})
    produce(log, "in-4", [(key, "v", 1_000) for key in KEYS * 2])
    run(application(4), log)
    resharded(application(3), log, 3, sources={"in-4": "in-3"})
    assert accept(application(3), log, lease(application(3), log))
    produce(log, "in-3", [(key, "v", 1_000) for key in KEYS * 2])
    run(application(3), log)
    assert {key: len(rows) for key, rows in outputs(log).items()} == {key.encode(): passed for key in KEYS}
