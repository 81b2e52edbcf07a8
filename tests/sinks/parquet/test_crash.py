"""A crash round of each kind: every record is in one file once, whatever was killed, frozen or away."""

from __future__ import annotations

from pathlib import Path

from ..rounds import run_today
from .crash import ParquetRounds


def test_a_round_of_each_fault(tmp_path: Path) -> None:
    run_today(ParquetRounds, tmp_path / "rounds")
