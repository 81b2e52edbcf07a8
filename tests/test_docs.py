"""The documentation cannot drift: its examples run, and nothing that can be named, set or called is missing from its
page.

In every page, blocks of ```python run in order in one namespace; one that begins with `# NAME.py` is written to that
file, too. Blocks of ```console are typed: each line after `$ ` is a command, what follows is what it prints (`...`
stands for anything). Everything of a page happens in one fresh directory. `penstock`, and a script that calls `run`,
run in this process and its Spark session, but in README.md, where they are what they are for a user. A script that
makes a session has it for itself.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

import penstock
import penstock.errors
from bench.__main__ import BENCHMARKS
from penstock.hooks import KINDS, Hooks
from penstock.plugins.operate.cli.group import penstock as program
from penstock.settings.settings import Settings

from .rotation import by_turns

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts),
    *sorted(page for folder in ("contrib", "examples", "bench") for page in (ROOT / folder).rglob("*.md")),
    ROOT / "tests" / "README.md",
]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLAIN = re.compile(r"(?:([^|;]+) \| )?penstock ([^|;&<>$*]+)(?: \| (.+))?")
"""A command of `penstock`, with what it reads from and what reads it; it needs no shell itself."""
LONG = {"README.md": 0, "write_and_prove.md": 0, "dataframes.md": 1, "backends.md": 1}
"""Pages that take longest, and on which of two days each runs; `make test-install` types README's commands each day."""
FOLDERS = {
    "core": "penstock",
    "stores": "penstock.stores",
    "plugins": "penstock.plugins",
    "contrib": "penstock.contrib",
}


def is_embedded(page: Path) -> bool:
    return page.name != "README.md" and re.search('engine(="| )embedded', page.read_text()) is not None


def runs_here(page: Path) -> bool:
    text = page.read_text()
    if page.name == "README.md" or is_embedded(page) or "make_session" in text:
        return False
    return re.search(r"^\$ (penstock run|python run_)", text, re.MULTILINE) is not None


def marked(page: Path) -> object:
    """A page whose commands start Spark runs with the other tests that do."""
    starts_spark = not is_embedded(page) and re.search(
        r"^\$ (export [^;]*; )?(penstock run|python run_)", page.read_text(), re.MULTILINE
    )
    marks = [pytest.mark.spark] if starts_spark else []
    if runs_here(page):
        marks.append(pytest.mark.xdist_group("spark elsewhere"))
    if page.name in LONG:
        marks.append(by_turns(LONG[page.name], 2))
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Forget the modules of a page's own directory, and the plugins that it registers: another test of this process has
    some of these names."""
    yield
    forget_modules(tmp_path)
    manager = penstock.plugin_manager()
    for name, _ in manager.of_this_process():
        manager.unregister(name=name)


def forget_modules(tmp_path: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("page", [marked(page) for page in PAGES if BLOCK.search(page.read_text())])
def test_every_example_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if runs_here(page):
        request.getfixturevalue("runs_here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = ModuleType("__main__")  # processors and tests of a page look up their module
    monkeypatch.setitem(sys.modules, f"docs_{page.stem}", module)
    namespace = vars(module)
    namespace["__name__"] = f"docs_{page.stem}"
    text = page.read_text()
    for match in BLOCK.finditer(text):
        kind, block = match.groups()
        where = f"{page.relative_to(ROOT)}:{text[: match.start(2)].count(chr(10)) + 1}"
        if kind == "console":
            type_commands(block, tmp_path, where, page)
            continue
        name = re.match(r"# (\S+\.py)\n", block)
        if name:
            (tmp_path / name[1]).write_text(block)
        line = text[: match.start(2)].count("\n")
        exec(compile("\n" * line + block, str(page), "exec"), namespace)


def type_commands(block: str, directory: Path, where: str, page: Path) -> None:
    """Run the commands of a console block and compare what they print."""
    for command, expected in commands_of(block):
        check_printed(printed_by(command, directory, f"{where}: {command}", page), expected, f"{where}: {command}")


def commands_of(block: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block, and what it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        while command.endswith("\\"):
            more, _, expected = expected.partition("\n")
            command = command[:-1] + more.removeprefix(">")
        yield command, expected


def check_printed(printed: str, expected: str, where: str) -> None:
    matches = doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)
    assert matches, f"{where} printed\n{printed}\nand not\n{expected}"


def printed_by(command: str, directory: Path, where: str, page: Path) -> str:
    """Run a command, which must succeed; return what it prints."""
    forget_modules(directory)
    importlib.invalidate_caches()
    plain = None if page.name == "README.md" else PLAIN.fullmatch(command)
    if plain is not None:
        before, arguments, after = plain.groups()
        given = typed(before, directory, where) if before else ""
        result = CliRunner(env={"NO_COLOR": "1"}).invoke(program, shlex.split(arguments), input=given)
        assert result.exit_code == 0, f"{where}\n{result.output}"
        return typed(after, directory, where, result.stdout) if after else result.stdout
    if runs_here(page) and command.startswith("python run_"):
        with redirect_stdout(StringIO()) as printed:
            runpy.run_path(str(directory / command.removeprefix("python ")), run_name="__main__")
        return printed.getvalue()
    return typed(command, directory, where)


def typed(command: str, directory: Path, where: str, given: str = "") -> str:
    """Run a command in a shell, which must succeed; return what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        check=False,
        cwd=directory,
        env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        input=given,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
    return done.stdout


def documented_modules() -> list[str]:
    """Import names of modules with examples in their docstrings."""
    return sorted(
        ".".join([name, *source.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(".__init__")
        for folder, name in FOLDERS.items()
        for source in (ROOT / folder).rglob("*.py")
        if ">>> " in source.read_text()
    )


@pytest.mark.parametrize("name", documented_modules())
def test_every_example_of_a_docstring_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted
    assert not result.failed


def section(page: Path, heading: str) -> str:
    """The text under a heading of a page, up to the next one of its level or above."""
    match = re.search(rf"^(#+) {re.escape(heading)}$(.*?)(?=^#{{1,9}} |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
    assert match, f"{page.relative_to(ROOT)} has no heading {heading!r}"
    return match[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", BLOCK.sub("", page.read_text()))
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_words(page: Path) -> None:
    """Sphinx fills in the heading of a link without words; plain Markdown, as a repository shows it, shows nothing."""
    lines = [number for number, line in prose(page.read_text()) if re.search(r"(?<!`)\[\]\(", line)]
    assert not lines, f"{page.relative_to(ROOT)}, lines {lines}: write the words of the link"


TRIPS = {
    "A record": 9,
    "A commit": 8,
    "A join": 4,
    "A query by HTTP": 5,
    "A closing window": 4,
}
"""Trips through the source, and the most files that each links to."""


def steps_of_trip(trip: str) -> list[list[str]]:
    """The files that each number of a trip links to."""
    steps = re.findall(r"^\d\. .*\n(?:   .*\n)*", section(ROOT / "CONTRIBUTING.md", trip), re.MULTILINE)
    return [re.findall(r"\]\(([^)]+\.py)\)", step) for step in steps]


@pytest.mark.parametrize("trip", TRIPS)
def test_a_trip_through_the_source_is_short(trip: str) -> None:
    steps = steps_of_trip(trip)
    assert len(steps) > 2 and all(steps)
    assert len({file for step in steps for file in step}) <= TRIPS[trip]


def test_the_files_on_a_records_way_say_what_comes_in_and_goes_out() -> None:
    files = [step[0] for step in steps_of_trip("A record")]
    assert "plugins/engine/task/commit.py" in files
    for file in files:
        docstring = (ROOT / file).read_text().split('"""')[1]
        assert "Comes in: " in docstring and "Goes out: " in docstring, file


def test_the_tests_to_run_after_a_change_are_there() -> None:
    rows = section(ROOT / "CONTRIBUTING.md", "Changed X, run Y")
    named = re.findall(r"[` ]((?:core|stores|plugins|contrib|doors|tests)/[^`\s{]*)(?:\{([^}]+)\})?", rows)
    paths = [folder + name for folder, names in named for name in names.split(",")]
    assert "tests/upgrades" in paths and "tests/changelogs" in paths
    assert not [path for path in paths if path != "tests/..." and not (ROOT / path).exists()]


def prose(text: str) -> list[tuple[int, str]]:
    """The lines of paragraphs and lists, with their numbers: no code, tables or comments."""
    lines, fence = [], ""
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r" *(```+|~~~+)", line)
        if mark and not fence:
            fence = mark[1]
        elif fence:
            fence = "" if line.strip() == fence else fence
        elif not re.match(r"(    |\||<!--)", line):
            lines.append((number, line))
    return lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_have_at_most_120_characters(page: Path) -> None:
    one_link = re.compile(r"\s*([-*]|\d+\.)?\s*\[[^]]*\]\([^)]*\)\S?")
    too_long = [number for number, line in prose(page.read_text()) if len(line) > 120 and not one_link.fullmatch(line)]
    assert not too_long, f"{page.relative_to(ROOT)}, lines {too_long}: break them"


HOOKS = [name for name in vars(Hooks) if name.startswith("penstock_")]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_and_its_arguments_are_documented(hook: str) -> None:
    text = section(DOCS / "plugins.md", f"`{hook}`")
    for argument in list(inspect.signature(getattr(Hooks, hook)).parameters)[1:]:
        assert f"`{argument}`" in text
    kind = next(kind for kind, name in KINDS.items() if name == hook)
    assert kind in text, f"the section of {hook} does not say what it gives: {kind}"


def test_no_hook_is_documented_that_is_not_there() -> None:
    assert set(re.findall(r"^#+ `(penstock_\w+)`", (DOCS / "plugins.md").read_text(), re.MULTILINE)) == set(HOOKS)


def test_every_benchmark_is_on_its_page() -> None:
    listed = re.findall(r"^\|( `[^|]+` )\|", (ROOT / "bench" / "README.md").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`([^`]+)`", "".join(listed))) == sorted(BENCHMARKS)


def test_every_setting_is_documented_with_its_default() -> None:
    documented = dict(re.findall(r"^`(\w+)` = `(.*)`\n: ", (DOCS / "settings.md").read_text(), re.MULTILINE))
    defaults = {
        name: getattr(value, "__name__", None) or repr(value).replace("'", '"')
        for name, value in Settings().by_name.items()
    }
    assert documented == defaults


def test_every_public_name_is_in_the_reference() -> None:
    core, *doors = re.split(
        r"^\.\. currentmodule:: (penstock\.\w+)$", (DOCS / "api.md").read_text(), flags=re.MULTILINE
    )
    listed = re.compile(r"^\.\. auto(?:class|data|function|exception):: (\w+)$", re.MULTILINE)
    classes = {name: each for name, each in vars(penstock.errors).items() if inspect.isclass(each)}
    errors = {name for name, each in classes.items() if each.__module__ == "penstock.errors"}  # by automodule
    assert set(listed.findall(core)) == set(penstock.__all__) - errors
    found = {name: set(listed.findall(text)) for name, text in zip(doors[::2], doors[1::2], strict=True)}
    found["penstock.spark"] |= set(
        re.findall(r"penstock\.spark\.(\w+)$", (DOCS / "dataframes.md").read_text(), re.MULTILINE)
    )
    assert found == {name: set(importlib.import_module(name).__all__) for name in found}
    assert set(found) == {
        "penstock.client",
        "penstock.console",
        "penstock.copying",
        "penstock.dsl",
        "penstock.queries",
        "penstock.spark",
        "penstock.testing",
    }


def commands(group: click.Group, path: str) -> list[tuple[str, click.Command]]:
    """Every command below a group, with the words that call it."""
    context = click.Context(group)
    found: list[tuple[str, click.Command]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((f"{path} {name}", command))
        if isinstance(command, click.Group):
            found += commands(command, f"{path} {name}")
    return found


def test_every_command_and_option_is_documented() -> None:
    page = DOCS / "cli.md"
    for path, command in commands(program, "penstock"):
        text = section(page, f"`{path}`")
        terms = " ".join(re.findall(r"^(`--.*)\n: ", text, re.MULTILINE))
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                long_name = max(parameter.opts, key=len)
                assert re.search(rf"`{long_name}[` ]", terms), f"cli.md, {path}: {long_name} is not documented"
            else:
                assert str(parameter.human_readable_name) in text, f"cli.md, {path}: {parameter.name} is not documented"


def test_every_count_is_documented() -> None:
    text = (DOCS / "metrics.md").read_text()
    assert re.findall(r"^`(\w+)`\n: ", text, re.MULTILINE) == [field.name for field in fields(penstock.NodeMetrics)]
    in_the_engine = {
        reason
        for source in (ROOT / "core").rglob("*.py")
        for reason in re.findall(r"\.drop\(\"(\w+)\"", source.read_text())
    }
    assert in_the_engine
    assert not [reason for reason in in_the_engine if f"`{reason}`" not in text]


def test_every_phase_is_documented() -> None:
    source = "".join(path.read_text() for path in (ROOT / "plugins/engine/task").glob("*.py"))
    phases = set(re.findall(r"phases\.(?:add|move)\((?:\"\w+\", )?\"(\w+)\"", source))
    assert phases
    assert (
        set(re.findall(r"^\| `(\w+)` \|", section(DOCS / "metrics.md", "Where the time goes"), re.MULTILINE)) == phases
    )
