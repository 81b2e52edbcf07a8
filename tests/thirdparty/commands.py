"""A command of `penstock` in a process that has loaded no plugin yet."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from click.testing import CliRunner

from penstock.plugins.cli.group import penstock


def run(
    connection: Connection, targets: Sequence[Path], directory: Path, arguments: Sequence[str], given: str | None
) -> None:
    """Run it in a directory, where packages are installed in the folders `targets`; send how it ends and prints."""
    sys.path[:0] = map(str, targets)
    os.chdir(directory)
    result = CliRunner().invoke(penstock, arguments, input=given)
    connection.send((result.exit_code, result.stdout, result.stderr))
