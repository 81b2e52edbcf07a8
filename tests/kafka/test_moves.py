"""Changes of the trigger and of the number of slots, on real Spark with a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..rotation import by_turns
from ..spark.moves import TRIGGERS, check_moves
from ..spark.surroundings import Surroundings
from .names import fresh_name

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@by_turns(1, 2)
def test_moves_between_triggers_and_slots(tmp_path: Path, spark: Any, broker: KafkaBroker) -> None:
    with Surroundings(tmp_path / "data", f"kafka:{broker.bootstrap}") as surroundings:
        check_moves(surroundings, spark, TRIGGERS[::-1], fresh_name("moving"), changelog="topic:")
