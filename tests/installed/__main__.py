"""Installs penstock in fresh environments and tries it there: `python -m tests.installed [PYTHON ...]`.

Each environment has what `pip install .` brings and nothing else. In the first one, README's commands run as printed,
on the embedded engine and on Spark, and each verb of the command line says its help and its errors; all modules that
pages import can be imported, or say which extra they need. With each extra alone, what named it can be imported. An
environment without Spark has the packages of docs/deploying/requirements-embedded.txt, and penstock as it is installed
where there is no C compiler. Other Pythons are tried without Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from configparser import ConfigParser
from functools import partial
from pathlib import Path

from tests.test_docs import BLOCK, check_printed, commands_of

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "docs" / "deploying" / "requirements-embedded.txt"
README_NEEDS = ("pytest", "hypothesis")
"""What README says that its page needs."""
ON_SPARK = re.compile(r"^\$ (python run_|penstock run (?!.*--engine embedded))", re.MULTILINE)
IMPORTS = re.compile(
    r"^(?:>>> )?(from penstock[\w.]* import (?:\([^)]*\)|[^\n(]+)|import penstock[\w.]*)", re.MULTILINE
)
TRY_IMPORTS = """
import json, sys
from penstock import MissingPackageError
said = {}
for statement in json.load(sys.stdin):
    try:
        exec(statement, {})
    except MissingPackageError as error:
        said[statement] = str(error)
print(json.dumps(said))
"""


class Environment:
    """A virtual environment in a directory; with `over`, the packages of that one are there, too."""

    def __init__(self, directory: Path, python: str, over: Environment | None = None) -> None:
        self.bin = directory / "bin"
        self.python = str(self.bin / "python")
        subprocess.run([python, "-m", "venv", *(["--without-pip"] if over else []), directory], check=True)
        self.site = next((directory / "lib").glob("python3*")) / "site-packages"
        self._pip = over.python if over else self.python
        if over is not None:
            (self.site / "under.pth").write_text(f"{over.site}\n")

    def install(self, *arguments: str | Path, **variables: str) -> None:
        """Install packages with pip."""
        command = [self._pip, "-m", "pip", "--python", self.python, "install", "--quiet", *map(str, arguments)]
        subprocess.run(command, check=True, env={**os.environ, **variables})

    def run(
        self, *command: str | Path, given: str = "", cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment."""
        path = os.pathsep.join([str(self.bin), os.environ["PATH"]])
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "PYTHON", "VIRTUAL_ENV"))}
        return subprocess.run(
            list(map(str, command)), input=given, cwd=cwd, env={**environment, "PATH": path, **variables},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def megabytes(self) -> float:
        """The size of the installed packages, without pip's own."""
        files = (each for each in self.site.rglob("*") if each.is_file() and not each.is_symlink())
        return sum(each.stat().st_size for each in files if not each.relative_to(self.site).parts[0].startswith(
            ("pip", "setuptools", "_distutils")
        )) / 1e6  # fmt: skip


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def write_programs(directory: Path) -> Path:
    """Write README's programs into a new directory."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for kind, block in BLOCK.findall((ROOT / "README.md").read_text()):
        name = re.match(r"# (\S+\.py)\n", block)
        if kind == "python" and name:
            (directory / name[1]).write_text(block)
    return directory


def compiled_parts(environment: Environment, **variables: str) -> str:
    """Return what `penstock --version` says of compiled parts."""
    said = environment.run("penstock", "--version", given="", cwd=None, **variables)
    assert said.returncode == 0, said.stderr
    return said.stdout.partition("\n")[2].strip()


def check_compiled(environment: Environment) -> None:
    """Where there is a compiler with Python's headers, each part is compiled, unless PENSTOCK_COMPILED=0."""
    parts = compiled_parts(environment)
    headers = environment.run(
        "python", "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"
    ).stdout.strip()
    expected = ": compiled" if shutil.which("cc") and (Path(headers) / "Python.h").exists() else ": not built"
    assert parts and all(expected in line for line in parts.splitlines()), parts
    off = compiled_parts(environment, PENSTOCK_COMPILED="0")
    assert all(": off " in line for line in off.splitlines()), off


def type_readme(environment: Environment, directory: Path, *, spark: bool) -> None:
    """Type README's commands and compare what they print; without those of Spark, unless `spark`."""
    for kind, block in BLOCK.findall((ROOT / "README.md").read_text()):
        if kind == "console" and (spark or ON_SPARK.search(block) is None):
            for command, expected in commands_of(block):
                done = environment.run("bash", "-c", command, cwd=directory)
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
                check_printed(done.stdout, expected, f"README.md: {command}")


def check_verbs(environment: Environment, directory: Path) -> int:
    """Ask each verb for its help, and give it a program that is not there; return the number of verbs."""
    listed = environment.run("penstock", "--help")
    assert listed.returncode == 0, listed.stderr
    verbs = re.findall(r"^  ([a-z]+)  ", listed.stdout.partition("Commands:")[2], re.MULTILINE)
    for verb in verbs:
        shown = environment.run("penstock", verb, "--help")
        assert shown.returncode == 0 and "Usage: penstock" in shown.stdout, f"penstock {verb} --help: {shown.stderr}"
        wrong = environment.run("penstock", verb, "nowhere:application", cwd=directory)
        assert wrong.returncode in (0, 1, 2), f"penstock {verb}: {wrong.stderr}"
        assert not re.search(r"Traceback|unexpected \w+Error", wrong.stderr), f"penstock {verb}: {wrong.stderr}"
    checked = environment.run("penstock", "plugins", "--check")
    assert checked.returncode == 0, checked.stderr
    return len(verbs)


def imports_of_pages() -> list[str]:
    """Every import of penstock that a page, README or an example shows."""
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    return sorted({each for path in texts for each in IMPORTS.findall(path.read_text()) if "..." not in each})


def lacking(environment: Environment, statements: list[str]) -> dict[str, str]:
    """Run imports; return what each said that lacks a package."""
    done = environment.run("python", "-c", TRY_IMPORTS, given=json.dumps(statements))
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return said


def check_first_errors(environment: Environment, directory: Path) -> None:
    """Errors that a new user sees who has no extra: each names the feature, the extra and the command."""
    assert environment.run("penstock", "topics", "create", "orders", "sales", cwd=directory).returncode == 0
    command = re.escape("pip install '") + ".+"
    for arguments, expected in (
        ("serve orders:application", rf"penstock serve needs the packages anyio, httptools, .*{command}\[serve\]'"),
        ("consume sales --value-serde avro:", rf"serde 'avro' needs the package \w+, .*{command}\[avro\]'"),
        ("consume sales --value-serde protobuf:a:B", rf"serde 'protobuf' needs .*{command}\[protobuf\]'"),
        ("consume sales --value-serde json_schema:", rf"serde 'json_schema' needs .*{command}\[json-schema\]'"),
        ("simulate orders:application", rf"penstock.testing.simulation needs .*{command}\[testing\]'"),
        (
            "run orders:application --engine embedded --metrics-port 9000",
            rf"'metrics_port' needs .*{command}\[metrics\]'",
        ),
        (
            "run orders:application --engine embedded --set store_backend=contrib.rocksdb",
            rf"needs .*{command}\[rocksdb\]'",
        ),
    ):
        done = environment.run("penstock", *arguments.split(), cwd=directory)
        assert done.returncode == 2 and re.search(expected, done.stderr), f"penstock {arguments}: {done.stderr}"


def copied_checkout(directory: Path) -> Path:
    """Copy the files of the repository, and nothing that was built there."""
    shutil.rmtree(directory, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / name)
    return directory


def own_copy(checkout: Path, name: str) -> Path:
    """Copy a checkout: two threads cannot build in one."""
    directory = checkout.with_name(f"checkout{name}")
    shutil.rmtree(directory, ignore_errors=True)
    return shutil.copytree(checkout, directory, ignore=shutil.ignore_patterns("build", "*.egg-info"))


def try_bare(directory: Path, python: str, checkout: Path) -> tuple[Environment, dict[str, str]]:
    """Try what `pip install .` brings, with Spark; return the environment, and what imports say that lack a package."""
    bare = Environment(directory / "bare", python)
    bare.install(checkout)
    check_compiled(bare)
    say(f"{python}: pip install . has {bare.megabytes():.0f} MB, {compiled_parts(bare)}")
    said = lacking(bare, imports_of_pages())
    for statement, text in said.items():
        assert re.search(r"\[([\w-]+)\]'$", text), f"{statement}: {text}"
    say(f"{len(imports_of_pages())} imports of pages, {len(said)} of which name an extra")
    programs = write_programs(directory / "readme")
    say(f"help and errors of {check_verbs(bare, programs)} verbs")
    check_first_errors(bare, write_programs(directory / "errors"))
    bare.install(*README_NEEDS)
    type_readme(bare, programs, spark=True)
    say("README's commands, on the embedded engine and on Spark")
    return bare, said


def try_extra(extra: str, directory: Path, python: str, bare: Environment, wheel: Path, said: dict[str, str]) -> None:
    """Try an extra alone: what named it can be imported."""
    environment = Environment(directory / f"extra-{extra}", python, bare)
    environment.install(f"{wheel}[{extra}]")
    names = [statement for statement, text in said.items() if text.endswith(f"[{extra}]'")]
    assert not (left := lacking(environment, names)), left
    checked = environment.run("python", "-m", "penstock.plugins.operate.cli", "plugins", "--check")
    assert checked.returncode == 0, checked.stderr
    say(f"the extra {extra} alone: {len(names)} imports")


def try_small(directory: Path, python: str, checkout: Path) -> None:
    """Try an installation without Spark and without a C compiler: the embedded engine works, and Spark's says what it
    needs.
    """
    small = Environment(directory / "small", python)
    small.install("--requirement", SMALL)
    small.install("--no-deps", own_copy(checkout, "small"), CC="/nonexistent")
    parts = compiled_parts(small)
    assert parts and all(": not built" in line for line in parts.splitlines()), parts
    say(f"{python}: without Spark {small.megabytes():.0f} MB, {parts}")
    programs = write_programs(directory / "readme-small")
    check_verbs(small, programs)
    small.install(*README_NEEDS)
    type_readme(small, programs, spark=False)
    for command in ("run orders:application", "warmup"):
        done = small.run("penstock", *command.split(), cwd=programs)
        assert done.returncode == 2 and "needs the packages pyspark, pandas, pyarrow, numpy" in done.stderr, (
            f"{command}: {done.stderr}"
        )
    say("README's commands on the embedded engine, and what Spark lacks")


def try_other(directory: Path, python: str, checkout: Path) -> None:
    """Try another Python, without Spark."""
    name = re.sub(r"\W+", "-", python)
    other = Environment(directory / f"other{name}", python)
    other.install(own_copy(checkout, name), *README_NEEDS)  # a wheel is of one Python
    check_compiled(other)
    programs = write_programs(directory / f"readme{name}")
    type_readme(other, programs, spark=False)
    say(f"{python}: README's commands on the embedded engine, help and errors of {check_verbs(other, programs)} verbs")


def main() -> None:
    """Try all environments."""
    parser = argparse.ArgumentParser(prog="python -m tests.installed", description="Try fresh installations.")
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="The interpreters; the first has Spark.")
    parser.add_argument("--directory", type=Path, help="Where the environments are made, and stay for another run.")
    given = parser.parse_args()
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = [each for each in config["options.extras_require"] if each != "dev"]
    with tempfile.TemporaryDirectory(prefix="penstock-install-") as temporary:
        directory = given.directory or Path(temporary)
        checkout = copied_checkout(directory / "checkout")
        first, *others = given.pythons
        bare, said = try_bare(directory, first, checkout)
        subprocess.run(
            [bare.python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", directory / "wheel", checkout], check=True
        )
        wheel = next((directory / "wheel").glob("*.whl"))
        tries = [partial(try_extra, extra, directory, first, bare, wheel, said) for extra in extras]
        tries += [partial(try_small, directory, first, checkout)]
        tries += [partial(try_other, directory, python, checkout) for python in others]
        with ThreadPoolExecutor(2) as threads:
            for done in as_completed([threads.submit(each) for each in tries]):
                done.result()
    say("all environments passed")


if __name__ == "__main__":
    main()
