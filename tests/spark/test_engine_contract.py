"""The engine `spark` keeps the contract of engines."""

from __future__ import annotations

import pytest

from penstock.plugins.spark.engine import SparkEngine

from ..kit.engine_contract import EngineContract
from ..rotation import by_turns


@by_turns(1, 2)
@pytest.mark.usefixtures("runs_here")
class TestSpark(EngineContract):
    engine = SparkEngine
    triggers = ("0s",)
    seconds = 120.0
