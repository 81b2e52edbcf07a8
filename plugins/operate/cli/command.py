"""Commands that carry examples, and how their help is drawn."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

OF_CHECKPOINTS = "status, plan, and of state: list, get, range, export, gc"
"""The verbs that have an option --checkpoint."""

OF_RUN = frozenset({"--conf", "--engine", "--master", "--trigger"})
"""The options of `run` that say how an engine runs an application."""

Example = tuple[str, str]
"""The purpose of an example, and its command line."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 failed while running, 2 nothing was started (usage, settings, application), 130 Ctrl-C."
)

_OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Formatter(click.HelpFormatter):
    """Help with colour; click leaves the colour out where the output is no terminal."""

    def write_heading(self, heading: str) -> None:
        """Write the heading of a section, bold."""
        self.write(f"{'':>{self.current_indent}}{click.style(heading + ':', bold=True)}\n")

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage line with the program's name in bold."""
        super().write_usage(click.style(prog, bold=True), args, prefix)

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and what they mean, with the names in colour."""
        rows = [
            (_OPTION.sub(_coloured, name) if "-" in name else click.style(name, fg="cyan"), text) for name, text in rows
        ]
        super().write_dl(rows, col_max, col_spacing)


class Context(click.Context):
    """A click context whose help is drawn by `Formatter`."""

    formatter_class = Formatter

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if os.environ.get("NO_COLOR"):
            self.color = False


class _WithExamples(click.Command):
    """A click command that carries examples, shown at the end of its help."""

    context_class = Context

    def __init__(self, *args: Any, examples: Iterable[Example] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)


class Command(_WithExamples):
    """A verb."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and say of a verb of an application on a log that it cannot do its work on a checkpoint."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in OF_RUN and any(each.name == "target" for each in self.params):
                raise click.UsageError(
                    f"{error.option_name} says how `penstock run` runs an application on an engine, and "
                    f"{ctx.command_path} runs nothing there: leave it out",
                    ctx,
                ) from error
            if error.option_name != "--checkpoint" or not any(each.name == "target" for each in self.params):
                raise
            raise click.UsageError(
                f"{ctx.command_path} works on an application's log, and a query of `transform` has none: its "
                f"positions and state are in Spark's checkpoint. With --checkpoint there are {OF_CHECKPOINTS}",
                ctx,
            ) from error

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, then the exit codes."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(EXIT_CODES)


class Group(_WithExamples, click.Group):
    """A verb with verbs of its own."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of adding, which is the order of use."""
        return list(self.commands)

    def verb(self, *examples: Example, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
        """Return a decorator that adds a verb with examples."""
        return self.command(name, examples=examples)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[Example]) -> None:
    """Write a section of examples: what it does, and below it the line to type, never wrapped (it is to be copied)."""
    if not examples:
        return
    with formatter.section("Examples"):
        for number, (purpose, line) in enumerate(examples):
            if number:
                formatter.write("\n")
            margin = " " * formatter.current_indent
            for part in textwrap.wrap(purpose, formatter.width - formatter.current_indent - 2):
                formatter.write(f"{margin}{click.style('# ' + part, dim=True)}\n")
            for part in line.splitlines():
                formatter.write(f"{margin}{part}\n")


def _remember_verbose(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().meta["penstock.verbose"] = True


verbose_option = click.option(
    "--verbose",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_remember_verbose,
    help="Show the traceback of an error, too (also: PENSTOCK_DEBUG=1).",
)
"""Adds `--verbose`, which may be given before or after the verb."""


def options(*options: Callable[[AnyFunction], AnyFunction]) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator that adds several options to a command, in this order."""

    def add(command: AnyFunction) -> AnyFunction:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def verb(*examples: Example, target: bool = True, name: str | None = None) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator that makes a verb with examples; unless `target` is False, of an application, MODULE:ATTR."""

    def make(function: Callable[..., Any]) -> Command:
        if target:
            function = click.argument("target", metavar="MODULE:ATTR")(function)
        return click.command(name, cls=Command, examples=examples)(function)

    return make


def separator_option(default: str | None, help: str) -> Callable[[AnyFunction], AnyFunction]:
    """Add `--key-separator`, in which backslash and t are a tab: shells make a tab hard to type."""

    def unescape(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value == "":
            raise click.BadParameter("expected some text")
        return None if value is None else value.replace("\\t", "\t")

    return click.option(
        "--key-separator",
        "-K",
        metavar="TEXT",
        default=default,
        show_default="a tab" if default == "\t" else False,
        callback=unescape,
        help=help + " \\t is a tab.",
    )


def _coloured(match: re.Match[str]) -> str:
    return click.style(match.group(), fg="cyan")
