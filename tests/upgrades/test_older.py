"""State of a version of penstock that is older than this one reads: refused by name, unchanged, and reset."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Application
from penstock.errors import IncompatibleStateError
from penstock.plugins.engine.program.check import accept_stores, drop_stores, saved_stores
from penstock.plugins.engine.program.reset import plan_reset, reset, to_latest

from ..leases import brief_lease
from .dsl_programs import program
from .restarts import Restarts, phases

VERB = "tumbling"


@pytest.fixture
def restarts(tmp_path: Path) -> Restarts:
    """A program has run and saved its state."""
    made = Restarts(tmp_path)
    made.start(program(VERB), phases()[0])
    return made


def change_note(restarts: Restarts, change: Callable[[dict[str, Any]], object]) -> None:
    note = json.loads(restarts.log.get_meta("app", "program") or b"")
    change(note)
    restarts.log.put_meta("app", "program", json.dumps(note).encode())


def to_format_1(note: dict[str, Any]) -> None:
    """Serdes had the names that the program gave them, and versions named no layout."""
    note["fingerprint"]["format"] = 1
    for each in note["fingerprint"]["subtopologies"].values():
        each["stores"] = {name: {"kind": "WindowStoreSpec", "key_serde": None} for name in each["stores"]}
    for name in ("values", "layouts", "reads", "lives"):
        del note[name]


def test_its_program_is_refused(restarts: Restarts) -> None:
    change_note(restarts, to_format_1)
    saved = restarts.saved()
    application = restarts.application(program(VERB))
    for use in (
        lambda: restarts.start(program(VERB)),
        lambda: saved_stores("app", restarts.log),
        lambda: accept_stores("app", restarts.log, brief_lease(restarts.log), ["kept"]),
        lambda: drop_stores(application, restarts.log, brief_lease(restarts.log), ["kept"]),
    ):
        with pytest.raises(IncompatibleStateError, match=r"'app', .* by an older version .*`penstock reset` it"):
            use()
    assert restarts.saved() == saved
    start_afresh(restarts, application)


def start_afresh(restarts: Restarts, application: Application) -> None:
    reset(application, restarts.log, plan_reset(application, restarts.log, to_latest), lambda: None)
    restarts.start(program(VERB), phases()[1])
    assert [each.name for each in saved_stores("app", restarts.log)] == ["kept"]
