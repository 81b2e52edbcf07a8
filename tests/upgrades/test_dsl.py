"""Each verb of the DSL with state, through changes of its program, beside the program that did not change."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .dsl_programs import IN_FRONT, NAMED, PLAIN, PROGRAMS, Chosen, program
from .restarts import Restarts, phases


@cache
def unchanged(verb: str) -> list[Any]:
    """Return what the program sends in each start if it stays as it is."""
    with tempfile.TemporaryDirectory() as directory:
        restarts = Restarts(Path(directory))
        return [restarts.start(program(verb), rows) for rows in phases()]


@pytest.mark.parametrize("verb", PROGRAMS)
@pytest.mark.parametrize("change", [IN_FRONT, NAMED], ids=["a verb in front", "a name given"])
def test_a_number_or_a_name_changes_nothing(verb: str, change: Chosen, tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    versions = [PLAIN, change, change, PLAIN]
    sent = [restarts.start(program(verb, each), rows) for each, rows in zip(versions, phases(), strict=True)]
    assert sent == unchanged(verb)
