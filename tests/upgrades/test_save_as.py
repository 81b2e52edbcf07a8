"""`Topology.save_as`: schedules of a node that gets another name, there and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Topology, TopologyError, key_value_store

from .dsl_programs import Remind
from .restarts import Restarts, phases


def topology(node: str, *saved_as: str) -> Topology:
    made = Topology().add_source("in", "left").add_processor(node, Remind, "in", stores=[key_value_store("kept")])
    if saved_as:
        made.save_as(node, *saved_as)
    return made.add_sink("out", "out", node, key_serde="str", value_serde="str")


def test_schedules_follow_a_node_to_another_name_and_back(tmp_path: Path) -> None:
    control, renamed = Restarts(tmp_path / "control"), Restarts(tmp_path / "renamed")
    for program, rows in zip(
        (topology("old"), topology("new", "new", "old"), topology("new", "new", "old"), topology("old")),
        phases(),
        strict=True,
    ):
        assert renamed.start(program, rows) == control.start(topology("old"), rows)


def test_only_a_processor_is_saved() -> None:
    with pytest.raises(TopologyError, match="save_as: there is no processor named 'in' yet"):
        Topology().add_source("in", "left").save_as("in", "store")
