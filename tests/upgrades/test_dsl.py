"""Each verb of the DSL with state, through changes of its program, beside the program that did not change."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .dsl_changes import SAME
from .dsl_programs import PLAIN, Chosen, program
from .restarts import Restarts, phases


@cache
def unchanged(verb: str) -> list[Any]:
    """Return what the program sends in each start if it stays as it is."""
    with tempfile.TemporaryDirectory() as directory:
        restarts = Restarts(Path(directory))
        return [restarts.start(program(verb), rows) for rows in phases()]


@pytest.mark.parametrize(
    ("verb", "change"),
    [pytest.param(verb, change, id=f"{verb}: {name}") for name, (change, verbs) in SAME.items() for verb in verbs],
)
def test_nothing_changes(verb: str, change: Chosen, tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    versions = [PLAIN, change, change, PLAIN]
    sent = [restarts.start(program(verb, each), rows) for each, rows in zip(versions, phases(), strict=True)]
    assert sent == unchanged(verb)
