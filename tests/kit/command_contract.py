"""The tests that each of our commands must pass."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

_HEAVY = ("pyspark", "pandas", "pyarrow", "numpy")
_SECONDS = 120
_NAME = "under-test"
"""The command's name in these tests: that of a package, made for each process."""


class CommandContract:
    """The contract of a command of `penstock`, as tests, each of which starts processes."""

    place: ClassVar[str]
    """Where the command is, as its plugin names it: `package.module:attribute`."""
    accepted: ClassVar[Sequence[Sequence[str]]] = ()
    """Arguments with which it does something and ends, with the exit code 0."""
    refused: ClassVar[Mapping[tuple[str, ...], str]] = {}
    """Arguments that it refuses, and a part of each message."""

    def test_its_help(self) -> None:
        """A sentence about the command, one about each option, and every argument in the text."""
        command = self._command()
        assert command.get_short_help_str(200).strip("."), "a command has a docstring, or `help`: `penstock` lists it"
        for each in command.params:
            if each.param_type_name == "option":
                assert each.help or each.hidden, f"the option {each.opts[0]} has a help text"
            else:
                name = each.metavar or each.name.upper()
                assert name in (command.help or ""), f"the help says what the argument {name} is"
        done = self._run("--help")
        assert (done.returncode, done.stderr) == (0, ""), f"--help ends with 0: {_said(done)}"
        assert "Usage: penstock" in done.stdout, f"--help is the command's help: {_said(done)}"

    def test_it_is_found_quickly(self) -> None:
        """`penstock --help` loads all commands: the module imports nothing heavy, and prints nothing."""
        module = self.place.partition(":")[0]
        code = f"import sys; from importlib import import_module; import_module({module!r}); "
        code += f"sys.exit(repr([each for each in {_HEAVY!r} if each in sys.modules]))"
        done = _process("-c", code)
        assert done.stdout == "", f"the module {module} prints when it is imported: {done.stdout!r}"
        assert done.stderr.strip() == "[]", f"imported with {module}, and only needed where it runs: {done.stderr}"

    def test_what_it_accepts(self) -> None:
        """Ends with 0, also where nobody reads its output to the end."""
        for arguments in self.accepted:
            done = self._run(*arguments)
            assert done.returncode == 0, f"{self._line(arguments)} ends with 0: {_said(done)}"
            assert "Traceback" not in done.stderr, f"{self._line(arguments)} writes no traceback: {_said(done)}"
            read, write = os.pipe()
            os.close(read)
            try:
                done = self._run(*arguments, stdout=write)
            finally:
                os.close(write)
            assert done.returncode == 0 and "Error" not in done.stderr, (
                f"{self._line(arguments)} whose output nobody reads ends with 0, and without a message: {_said(done)}"
            )

    def test_what_it_refuses(self) -> None:
        """With one message on stderr that says what is wrong, and an exit code of `penstock`."""
        for arguments, part in {("--no-such-option",): "no-such-option", **self.refused}.items():
            done = self._run(*arguments)
            line = self._line(arguments)
            assert done.returncode in (1, 2), f"{line} ends with 2, or with 1 where it had begun: {_said(done)}"
            assert "Traceback" not in done.stderr, f"{line} writes a message and no traceback: {_said(done)}"
            assert part in done.stderr, f"{line} writes a message with {part!r} on stderr: {_said(done)}"
            assert done.stdout == "", f"{line} writes nothing on stdout, which other programs read: {_said(done)}"

    def _command(self) -> Any:
        module, _, attribute = self.place.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        assert hasattr(found, "get_short_help_str"), f"{self.place} is a click command, found {found!r}"
        return found

    def _run(self, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
        with TemporaryDirectory() as directory:
            _install(Path(directory), self.place)
            return _process("-m", "penstock.plugins.operate.cli", _NAME, *arguments, stdout=stdout, path=directory)

    def _line(self, arguments: Sequence[str]) -> str:
        return " ".join(["penstock", _NAME, *arguments])


def _install(directory: Path, place: str) -> None:
    """Make a distribution in a directory, with a plugin that brings the command at `place`."""
    (directory / "commands_under_test.py").write_text(
        "from penstock.hooks import hookimpl\n\n\n"
        f"@hookimpl\ndef penstock_cli_commands():\n    return {{{_NAME!r}: {place!r}}}\n"
    )
    info = directory / "under_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: under-test\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[penstock]\nunder-test = commands_under_test\n")


def _process(*arguments: str, stdout: int = subprocess.PIPE, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a Python process that finds modules in `path` and where this one does, and whose input is empty."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, *sys.path)))}
    return subprocess.run(
        [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True,
        timeout=_SECONDS, env=environment,
    )  # fmt: skip


def _said(done: subprocess.CompletedProcess[str]) -> str:
    written = f"{done.stdout or ''}{done.stderr}".strip()
    return f"exit code {done.returncode}, and it wrote {written!r}"
