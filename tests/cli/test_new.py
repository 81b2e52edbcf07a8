"""`penstock new`: what it writes works, and it writes over nothing. docs/write_and_prove.md installs a processor and
runs it; here is the backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.plugins.operate.cli.group import penstock as program
from penstock.support.packages import DISTRIBUTION

from ..rotation import by_turns


def new(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["new", *arguments])


def pytest_in(directory: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(directory / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory)]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@by_turns(0, 2)
def test_a_backend_passes_its_tests(tmp_path: Path) -> None:
    assert new("backend", "acme-engine", "--directory", str(tmp_path / "made")).exit_code == 0
    test = tmp_path / "made" / "tests" / "test_backend.py"
    text = test.read_text()
    assert text.count("staticmethod(Backend)\n") == 2
    test.write_text(text.replace("staticmethod(Backend)\n", "staticmethod(Backend)\n    examples = 2\n"))
    said = pytest_in(tmp_path / "made")
    assert " passed" in said and "failed" not in said, said


@by_turns(1, 2)
def test_a_sink_passes_its_tests(tmp_path: Path) -> None:
    assert new("sink", "acme-table", "--directory", str(tmp_path / "made")).exit_code == 0
    said = pytest_in(tmp_path / "made")
    assert " passed" in said and "failed" not in said, said


@pytest.mark.parametrize("kind", ["processor", "backend", "sink"])
def test_it_is_formatted_and_its_names_fit(tmp_path: Path, kind: str) -> None:
    made = tmp_path / "made"
    assert new(kind, "penstock-acme-things", "--directory", str(made)).exit_code == 0
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    subprocess.run([*ruff, "format", "--check", "--line-length", "120", str(made)], check=True)
    subprocess.run(
        [*ruff, "check", "--isolated", "--line-length", "120", "--select", "E,F,W,UP,B", str(made)], check=True
    )
    assert '"acme-things.' in (made / "src" / "penstock_acme_things" / "__init__.py").read_text()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    refused = new("processor", "acme", "--directory", str(tmp_path))
    assert refused.exit_code == 2 and "is there already: name an empty directory" in refused.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["Acme", "acme_things", "acme-", "1acme", "../acme", "penstock", ""])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    refused = new("processor", name, "--directory", str(tmp_path / "made"))
    assert refused.exit_code == 2 and "expected small letters and digits" in refused.stderr
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", [DISTRIBUTION, "pytest"])
def test_a_package_in_the_place_of_one_that_it_needs_is_refused(tmp_path: Path, name: str) -> None:
    refused = new("processor", name, "--directory", str(tmp_path / "made"))
    assert refused.exit_code == 2 and "would be installed in its place: choose another one" in refused.stderr
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["class", "json"])
def test_a_package_that_python_could_not_import_is_refused(tmp_path: Path, name: str) -> None:
    refused = new("processor", name, "--directory", str(tmp_path / "made"))
    assert refused.exit_code == 2 and "Python has a keyword or a module of this name" in refused.stderr
    assert not (tmp_path / "made").exists()
