"""A crash round of each kind: every record is in the table once, whatever was killed or frozen."""

from __future__ import annotations

from pathlib import Path

import pytest

from .crash import FAULTS, run_rounds
from .postgres_server import programs


@pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed here")
def test_a_round_of_each_fault(tmp_path: Path) -> None:
    run_rounds(tmp_path / "data", len(FAULTS), seed=1)
