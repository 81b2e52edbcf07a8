"""Plugins that no package has reach Spark's workers with the application: those that plan, and the task hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Processor, Record, Topology, hookimpl, run
from penstock.hooks import Components
from penstock.testing import own_plugins

from .surroundings import Surroundings
from .test_hosts import fresh

pytestmark = pytest.mark.spark


class Upper(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(record.value.upper()))


class Shop:
    """A log and a processor."""

    @hookimpl
    def penstock_logs(self) -> Components:
        return {"shop.log": "penstock.plugins.logs.local:LocalLog"}

    @hookimpl
    def penstock_processors(self) -> Components:
        return {"shop.upper": Upper}


def test_a_log_and_a_processor_of_the_drivers_process(tmp_path: Path, spark: Any) -> None:
    with own_plugins(Shop()), Surroundings(tmp_path, f"shop.log:{tmp_path / 'log'}") as surroundings:
        topology = Topology().add_source("in", "in", key_serde="str", value_serde="str")
        topology.add_processor("upper", "shop.upper", "in")
        topology.add_sink("out", "out", "upper", key_serde="str", value_serde="str")
        surroundings.create(**{"in": 2, "out": 1})
        surroundings.put("in", [("k", "tea", 1), ("l", "cake", 2)])
        run(surroundings.application(fresh("shop"), topology), session=spark)
        assert surroundings.values_by_key("out") == {"k": ["TEA"], "l": ["CAKE"]}
