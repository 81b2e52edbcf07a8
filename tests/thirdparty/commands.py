"""A command of `penstock` in a process that has loaded no plugin yet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from click.testing import CliRunner

from penstock.plugins.operate.cli.group import penstock
from penstock.plugins.testing.contracts.child import answer, children_for


def run_apart(
    *arguments: str, path: Iterable[str | Path], directory: Path, given: str | None = None, code: int = 0
) -> tuple[str, str]:
    """Run a command in a process that has loaded no plugin yet, and finds packages in `path` first; it must end with
    `code`. Return what it printed. The process is forked from one that has imported the command line: starting Python
    takes longer than most commands.
    """
    with children_for(__name__).started(_run, list(path), directory, arguments, given) as connection:
        found, out, err = answer(connection)
    assert found == code, f"{arguments}: {found}\n{out}\n{err}"
    return out, err


def _run(
    connection: Connection, path: Iterable[str | Path], directory: Path, arguments: Sequence[str], given: str | None
) -> None:
    sys.path[:0] = map(str, path)
    os.chdir(directory)
    result = CliRunner().invoke(penstock, arguments, input=given)
    connection.send((result.exit_code, result.stdout, result.stderr))
