"""What the tests of the command line share: a command in this process, in a forked one, or in a real one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from click.testing import CliRunner, Result

from penstock.plugins.operate.cli.group import penstock

from ..thirdparty.commands import run_apart


class Console:
    """A directory to work in, its log, and `penstock`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # As users have it, whatever the tests are run with: output is buffered.
        self.environment = {"PYTHONUNBUFFERED": ""}

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a file of the directory."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        importlib.invalidate_caches()
        return path

    def __call__(self, *arguments: str, stdin: str | bytes = "", code: int = 0) -> Result:
        """Run a command in this process, in the directory (a fixture has gone there); it must end with `code`."""
        result = CliRunner().invoke(penstock, list(arguments), input=stdin)
        assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr
        return result

    def json(self, *arguments: str, **options: Any) -> Any:
        """Run a command in this process and read the JSON it prints."""
        return json.loads(self(*arguments, **options).stdout)

    def json_lines(self, *arguments: str, **options: Any) -> list[Any]:
        """Run a command in this process and read the JSON it prints on each line."""
        return [json.loads(line) for line in self(*arguments, **options).stdout_bytes.splitlines()]

    def apart(self, *arguments: str, environment: Mapping[str, str], code: int = 0) -> tuple[str, str]:
        """Run a command in a process that loads plugins anew, with those of `install`; it must end with `code`."""
        path = environment["PYTHONPATH"].split(os.pathsep)
        return run_apart(*arguments, path=path, directory=self.directory, code=code)

    def start(
        self,
        *arguments: str,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a real process."""
        return subprocess.Popen(
            [sys.executable, "-m", "penstock.plugins.operate.cli", *arguments],
            cwd=self.directory,
            env={**os.environ, **self.environment, **(environment or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def process(
        self, *arguments: str, code: int = 0, environment: Mapping[str, str] | None = None, timeout: int = 60
    ) -> tuple[str, str]:
        """Run a real process to its end, which must be with `code`; return what it printed."""
        started = self.start(*arguments, environment=environment)
        try:
            out, err = started.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            started.terminate()
            out, err = started.communicate()
            raise AssertionError(f"{arguments}: not done after {timeout} s\n{out}\n{err}") from None
        assert started.returncode == code, f"{arguments}: {started.returncode}\n{out}\n{err}"
        return out, err


def install(console: Console, name: str, plugin: str, **modules: str) -> dict[str, str]:
    """Put a package with an entry point where processes will find it; return the environment for them."""
    site = console.directory / "site"
    console.write(f"site/{name}-1.5.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    console.write(f"site/{name}-1.5.dist-info/entry_points.txt", f"[penstock]\n{name} = {name}.plugin\n")
    console.write(f"site/{name}/__init__.py", "")
    console.write(f"site/{name}/plugin.py", "from penstock.hooks import hookimpl\n" + plugin)
    for module, text in modules.items():
        console.write(f"site/{name}/{module}.py", text)
    return {"PYTHONPATH": str(site)}
