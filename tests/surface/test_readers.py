"""Readers of every kind beside a running application: it goes on, and good readers get right answers."""

from __future__ import annotations

from pathlib import Path

from ..rotation import DAY
from .readers import MANY, read_beside_a_run


def test_readers_of_every_kind_beside_a_run(tmp_path: Path) -> None:
    found = read_beside_a_run(tmp_path, 8.0, 1 if DAY == "all" else int(DAY))
    assert not found.wrong, "\n".join(found.wrong[:20])
    assert found.most >= 2 and 500 not in found.statuses
    assert {each.__name__ for each in MANY} - {"of_another_program"} <= set(found.done)
