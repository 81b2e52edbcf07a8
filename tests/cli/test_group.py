"""`penstock` itself: help, commands of other packages, errors and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from penstock.compiled import status
from penstock.plugins.operate.cli.command import Command, Group
from penstock.plugins.operate.cli.group import penstock

from .console import Console, install

COMMANDS = """
import click

@click.command()
@click.option("--name", default="world")
def hello(name):
    '''Greet somebody.'''
    click.echo(f"hello {name}")

@click.command()
def fails():
    '''Fail.'''
    raise ZeroDivisionError("over nothing")

not_a_command = 3
"""


HOOK = "@hookimpl\ndef penstock_cli_commands():\n    return {commands}\n"


def walk(group: click.Group, path: str = "penstock") -> list[tuple[str, click.Command]]:
    context = click.Context(group)
    found: list[tuple[str, click.Command]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((f"{path} {name}", command))
        if isinstance(command, click.Group):
            found += walk(command, f"{path} {name}")
    return found


EVERY_COMMAND = walk(penstock)


@pytest.mark.parametrize(("path", "command"), EVERY_COMMAND, ids=lambda each: each if isinstance(each, str) else "")
def test_every_command_teaches(path: str, command: click.Command, console: Console) -> None:
    assert isinstance(command, (Command, Group))
    assert command.help
    text = console(*path.split()[1:], "--help").stdout
    assert re.search(r"^  # .+\n(  # .+\n)*  .*penstock ", text, re.MULTILINE), "no example"
    assert "Examples:" in text
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.name} has no help"
    for _, line in command.examples:
        for option in re.findall(r"(?<=\s)--[a-z-]+", re.sub(r"\|\s*(?!penstock)\S+.*", "", line)):
            assert any(option in each.opts for _, other in EVERY_COMMAND for each in other.params), (
                f"{option} in {line!r}"
            )


def test_examples_name_commands_that_are_there() -> None:
    names = {name.removeprefix("penstock ") for name, _ in EVERY_COMMAND}
    for path, command in EVERY_COMMAND:
        assert isinstance(command, (Command, Group))
        for _, line in command.examples:
            for words in re.findall(r"penstock ((?:topics )?[a-z]+)", line):
                assert words in names, f"{path}: {line}"


def test_help_lists_what_there_is_in_the_order_of_use(console: Console) -> None:
    text = console("--help").stdout
    section = text[text.index("Commands:") :]
    assert re.findall(r"^  ([a-z]+)  ", section, re.MULTILINE) == [
        "run",
        "describe",
        "config",
        "lag",
        "status",
        "top",
        "health",
        "pause",
        "resume",
        "visit",
        "reset",
        "plan",
        "changelog",
        "state",
        "serve",
        "standby",
        "stores",
        "reshard",
        "dlq",
        "topics",
        "produce",
        "consume",
        "copy",
        "plugins",
        "new",
        "simulate",
        "profile",
        "warmup",
    ]
    assert "Exit codes: 0 done" in text


def test_help_is_plain_where_it_is_no_terminal(console: Console) -> None:
    assert "\x1b" not in console("--help").stdout


def test_without_arguments_help_is_shown(console: Console) -> None:
    assert "Commands:" in console(code=2).output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prodcue"], "there is no command 'prodcue'; did you mean 'produce'"),
        (["zzzz"], "there is no command 'zzzz'; there are: run, describe, config, lag"),
        (["plugins", "--nosuch"], "No such option"),
        (["topics", "create"], "Missing argument 'NAME...'"),
    ],
)
def test_wrong_usage_is_2(console: Console, arguments: list[str], message: str) -> None:
    assert message in console(*arguments, code=2).stderr


def test_the_version(console: Console) -> None:
    said = console("--version").stdout
    parts = "".join(f"{part}: {state}\n" for part, state in status().items())
    assert re.fullmatch(rf"penstock, version \d+\.\d+.*\n{re.escape(parts)}", said)
    assert re.match(r"records: .*\nkafka: ", parts)


def test_the_version_without_compiled_parts(console: Console) -> None:
    out, _ = console.process("--version", environment={"PENSTOCK_COMPILED": "0"})
    assert out.splitlines()[1:] == [f"{part}: off (PENSTOCK_COMPILED=0)" for part in status()]


# -- commands of other packages


def test_commands_of_other_packages_are_listed_and_run(console: Console) -> None:
    environment = install(
        console, "acme", HOOK.format(commands={"acme.hello": "acme.commands:hello"}), commands=COMMANDS
    )
    out, _ = console.process("--help", environment=environment)
    assert re.search(r"Commands of installed packages:\n  acme.hello +Greet somebody. \(acme 1.5\)", out)
    assert console.process("acme.hello", "--name", "you", environment=environment) == ("hello you\n", "")


def test_an_error_in_them_is_one_message(console: Console) -> None:
    environment = install(
        console, "acme", HOOK.format(commands={"acme.fails": "acme.commands:fails"}), commands=COMMANDS
    )
    _, err = console.process("acme.fails", code=1, environment=environment)
    assert re.fullmatch(
        r"Error: unexpected ZeroDivisionError: over nothing \(.*commands.py, line 13\)\nAdd --verbose .*\n", err
    )
    _, err = console.process("--verbose", "acme.fails", code=1, environment=environment)
    assert "Traceback (most recent call last)" in err
    assert "Add --verbose" not in err


def test_a_broken_command_harms_no_other(console: Console) -> None:
    commands = {
        "acme.hello": "acme.commands:hello",
        "acme.gone": "acme.nowhere:command",
        "acme.odd": "acme.commands:not_a_command",
    }
    environment = install(console, "acme", HOOK.format(commands=commands), commands=COMMANDS)
    out, _ = console.process("--help", environment=environment)
    out = " ".join(out.split())
    assert "acme.gone cannot be loaded: ModuleNotFoundError: No module named 'acme.nowhere' (acme 1.5)" in out
    assert "acme.odd cannot be loaded: PluginError" in out
    assert "acme.hello Greet somebody." in out
    assert "produce " in out
    _, err = console.process("acme.gone", "--help", code=2, environment=environment)
    assert "command 'acme.gone' of package acme 1.5 cannot be loaded" in err
    _, err = console.process("acme.odd", code=2, environment=environment)
    assert "expected a click command at 'acme.commands:not_a_command', found int" in err


def test_broken_plugins_leave_our_commands_alone(console: Console) -> None:
    plugins = {
        "importing": ("1/0\n", "ZeroDivisionError: division by zero"),
        "raising": (
            "@hookimpl\ndef penstock_cli_commands():\n    raise ValueError('not today')\n",
            "ValueError: not today",
        ),
        "returning": (
            "@hookimpl\ndef penstock_cli_commands():\n    return 5\n",
            "penstock_cli_commands returned int, expected a mapping like {'returning.NAME': ",
        ),
        "abducting": (
            HOOK.format(commands={"topics": "abducting.commands:hello"}),
            "it is the name of penstock's own, which stays in use: call it abducting.topics",
        ),
        "unknown": ("@hookimpl\ndef penstock_comands():\n    return {}\n", "penstock_comands"),
    }
    for name, (plugin, _) in plugins.items():
        environment = install(console, name, plugin, commands=COMMANDS)
    out, _ = console.process("--help", environment=environment)
    for verb in ("run", "describe", "topics", "produce", "consume", "plugins"):
        assert re.search(rf"^  {verb}  ", out, re.MULTILINE)
    assert "Create, list, describe and delete topics" in console.process("topics", "--help", environment=environment)[0]
    broken = {
        each["plugin"]: each["error"]
        for each in json.loads(console.process("plugins", "--json", environment=environment)[0])["broken"]
    }
    for name, (_, reason) in plugins.items():
        assert any(name in plugin + error and reason in error for plugin, error in broken.items()), name


# -- errors


def test_an_error_of_ours_is_one_message_and_its_traceback_on_request(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, err = console.process("describe", "nowhere:application", code=2)
    assert re.fullmatch(r"Error: there is no module 'nowhere' in .*\n", err)
    for arguments, environment in (
        (["--verbose", "describe"], {}),
        (["describe", "--verbose"], {}),
        (["describe"], {"PENSTOCK_DEBUG": "1"}),
    ):
        monkeypatch.setenv("PENSTOCK_DEBUG", environment.get("PENSTOCK_DEBUG", ""))
        result = CliRunner().invoke(penstock, [*arguments, "nowhere:application"])
        assert result.exit_code == 2
        assert "Traceback (most recent call last)" in result.stderr
        assert "Error: there is no module 'nowhere'" in result.stderr


# -- the start


def test_help_loads_nothing_heavy(console: Console) -> None:
    heavy = [
        "pyspark",
        "pandas",
        "pyarrow",
        "numpy",
        "lmdb",
        "confluent_kafka",
        "rich",
        "orjson",
        "hypothesis",
        "pytest",
    ]
    console.write(
        "look.py",
        "import sys\nfrom penstock.plugins.operate.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n"
        f"    print([name for name in {heavy} if name in sys.modules], file=sys.stderr)\n",
    )
    for arguments in (["--help"], ["run", "--help"], ["consume", "--help"], ["plugins"]):
        done = subprocess.run(
            [sys.executable, "look.py", *arguments], cwd=console.directory, capture_output=True, text=True, check=True
        )
        assert done.stderr == "[]\n", arguments


def test_help_loads_few_modules(console: Console) -> None:
    """The time of a help is that of its imports, and other programs of the machine do not change their number."""
    program = """
import contextlib, io, sys
from penstock.plugins.operate.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["--help"])
print(len(sys.modules))
"""
    environment = {**os.environ, **console.environment}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 450
