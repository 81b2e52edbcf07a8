"""A crash round of each kind: every record is in the table once, whatever was killed or frozen."""

from __future__ import annotations

from pathlib import Path

import pytest

from .crash import PostgresRounds
from .postgres_server import programs
from .rounds import run_today


@pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed here")
def test_a_round_of_each_fault(tmp_path: Path) -> None:
    run_today(PostgresRounds, tmp_path / "rounds")
