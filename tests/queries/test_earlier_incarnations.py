"""What another machine has from before a reset or a restore is no answer, however many versions it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Application, StoreUnavailableError
from penstock.plugins.operate.cli.target import load
from penstock.queries import Queries

from ..cli.applications import TARGET, counting, run
from ..cli.conftest import console as console_fixture
from ..cli.console import Console
from ..cli.test_reset import append, logs

console = console_fixture


def counted(machine: Path, **options: Any) -> Any:
    """Return the count of "a" in the local state of a machine."""
    application: Application = load(TARGET).with_settings(state_dir=str(machine))
    with Queries.of_this_machine(application) as queries:
        return queries.store("counts", wait="0ms", **options).get("a")


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_a_machine_with_an_earlier_incarnation_does_not_answer(console: Console, changelog: str) -> None:
    counting(console)
    old, new = console.directory / "old", console.directory / "new"
    settings = ("--set", f"changelog={changelog}")
    with logs(console) as log:
        for number in range(6):
            append(log, 0, "a", number)
            run(state_dir=str(old), changelog=changelog)
    assert counted(old) == 6
    console("reset", TARGET, "--to-latest", "--yes", *settings)
    with logs(console) as log:
        append(log, 0, "a", 9)
    run(state_dir=str(new), changelog=changelog)
    assert counted(new) == 1
    for options in ({}, {"stale_ok": True}):
        with pytest.raises(StoreUnavailableError, match="from before the application was reset or restored"):
            counted(old, **options)


def test_a_restored_application_is_another_incarnation(console: Console) -> None:
    counting(console)
    old, new = console.directory / "old", console.directory / "new"
    with logs(console) as log:
        append(log, 0, "a", 1)
    run(state_dir=str(old))
    console("state", "backup", TARGET, "backups", "--set", f"state_dir={old}")
    with logs(console) as log:
        append(log, 0, "a", 2)
    run(state_dir=str(old))
    assert counted(old) == 2
    console("reset", TARGET, "--yes", "--set", f"state_dir={new}")
    console("state", "restore", TARGET, "backups", "--set", f"state_dir={new}")
    with pytest.raises(StoreUnavailableError, match="from before the application was reset or restored"):
        counted(old)
