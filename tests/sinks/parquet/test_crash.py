"""A crash round of each kind: every record is in one file once, whatever was killed, frozen or away."""

from __future__ import annotations

from pathlib import Path

from .crash import FAULTS, run_rounds


def test_a_round_of_each_fault(tmp_path: Path) -> None:
    run_rounds(tmp_path / "rounds", len(FAULTS), seed=1)
