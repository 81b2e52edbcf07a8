"""A reader that has left (`penstock VERB | head`) ends each verb quietly, whether it read data, remarks or both."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from penstock.plugins.engine.program.run_status import StatusTopic
from penstock.plugins.operate.cli.group import penstock
from penstock.plugins.operate.cli.options import open_log
from penstock.plugins.operate.cli.verbs import VERBS
from penstock.settings.settings import Settings

from .applications import TARGET, counting, run
from .console import Console
from .test_status import status

PRINTING: dict[str, tuple[str, ...]] = {
    "changelog": ("changelog", "--help"),
    "config": ("config", TARGET),
    "consume": ("consume", "totals", "--value-serde", "int"),
    "describe": ("describe", TARGET),
    "dlq": ("dlq", "show", "dead"),
    "health": ("health", TARGET),
    "help": ("--help",),
    "lag": ("lag", TARGET),
    "plan": ("plan", TARGET),
    "plugins": ("plugins",),
    "profile": ("profile", TARGET, "--once"),
    "state": ("state", "list", TARGET),
    "status": ("status", TARGET),
    "stores": ("stores", "list", TARGET),
    "top": ("top", TARGET),
    "topics": ("topics", "list"),
    "version": ("--version",),
    "visit": ("visit", TARGET),
}
REMARKS_ONLY = {
    "copy",
    "new",
    "pause",
    "produce",
    "reset",
    "reshard",
    "resume",
    "run",
    "serve",
    "simulate",
    "standby",
    "warmup",
}


@pytest.fixture
def ran(console: Console) -> Console:
    counting(console)
    console("produce", "words", "--partition", "0", stdin="to\nbad\nbe\n")
    run()
    with open_log(Settings(data_dir=str(console.directory / ".penstock"))) as log:
        now = status()
        StatusTopic(log, "counting").write(replace(now, tasks=now.tasks[:1]))
    return console


@contextmanager
def nobody_reads(*names: str) -> Iterator[None]:
    """Let streams of this process be pipes whose reader has left."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            reading, writing = os.pipe()
            os.close(reading)
            patch.setattr(sys, name, open(writing, "w"))  # noqa: SIM115 (it stays broken, and so does its `close`)
        yield
        for name in names:
            getattr(sys, name).close()  # raises BrokenPipeError if something is left to be written at the exit


def test_each_verb_that_prints_is_here() -> None:
    assert PRINTING.keys() - {"help", "version"} | REMARKS_ONLY == VERBS.keys()


@pytest.mark.parametrize("verb", PRINTING)
def test_without_a_reader_it_ends_quietly(verb: str, ran: Console, capsys: pytest.CaptureFixture[str]) -> None:
    with nobody_reads("stdout"), pytest.raises(SystemExit) as ended:
        penstock.main(list(PRINTING[verb]))
    assert (ended.value.code, capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("pause", TARGET), 0), (("plugins", "--check"), 0), (("run", "nowhere:application"), 2), (("nothing",), 2)],
)
def test_remarks_and_errors_without_a_reader(arguments: tuple[str, ...], code: int, ran: Console) -> None:
    """As with `2>&1 | head`. The exit code of an error is that of the error."""
    with nobody_reads("stdout", "stderr"), pytest.raises(SystemExit) as ended:
        penstock.main(list(arguments))
    assert ended.value.code == code
