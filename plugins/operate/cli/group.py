"""The command `penstock` itself: finds the verbs of all installed packages, and maps errors to exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import click

from penstock import PenstockError, PluginError
from penstock.compiled import status
from penstock.hooks import Component, registry
from penstock.support.names import did_you_mean
from penstock.support.packages import DISTRIBUTION, installed_version

from .command import EXIT_CODES, Context, verbose_option, write_examples
from .failures import INTERRUPTED, OK, ReaderGone, Terminated, exit_code, show
from .output import reader_may_leave
from .verbs import VERBS


class Verbs(click.Group):
    """A click group whose verbs come from the hook `penstock_cli_commands` and are loaded when they are needed.

    A broken verb of another package does not affect other verbs.
    """

    context_class = Context

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._context: click.Context | None = None

    def components(self) -> Mapping[str, Component]:
        """Return the verbs by name, ours first; no other package takes the name of one of ours."""
        own = {
            name: Component("command", name, target, "cli", DISTRIBUTION, _version()) for name, target in VERBS.items()
        }
        found = registry()
        return own | {name: found.components["command", name] for name in found.names("command") if name not in own}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.components())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb, loaded. Raises PluginError when its package is broken."""
        component = self.components().get(cmd_name)
        return None if component is None else _load(component)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb of the arguments. An unknown name is an error with the nearest names."""
        components = self.components()
        if args and args[0] not in components and not args[0].startswith("-"):
            advice = did_you_mean(args[0], components, 0.5) or f"there are: {', '.join(components)}"
            raise click.UsageError(f"there is no command {args[0]!r}; {advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write our verbs, then those of other packages; a broken one with the reason instead of its help."""
        components = self.components()
        ours = {name: each for name, each in components.items() if each.package == DISTRIBUTION}
        others = {name: each for name, each in components.items() if each.package != DISTRIBUTION}
        limit = formatter.width - 6 - max(map(len, components))
        rows = [(name, _load(each).get_short_help_str(limit)) for name, each in ours.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        if others:
            with formatter.section("Commands of installed packages"):
                formatter.write_dl([(name, _summary(each, limit)) for name, each in others.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write where to start, and the exit codes."""
        write_examples(
            formatter,
            [
                ("A topic on this host, text into it, an application over it, and what came out", "penstock topics create lines --partitions 2\npenstock produce lines --file book.txt\npenstock run wordcount:application\npenstock consume counts --value-serde int --print-key"),
                ("What a command does, and examples of it", "penstock run --help"),
            ],
        )  # fmt: skip
        formatter.write_paragraph()
        formatter.write_text(EXIT_CODES)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb. One whose output nobody reads any longer just ends, also where it writes by `click.echo`."""
        with reader_may_leave():  # click would exit with 1
            return super().invoke(ctx)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Make the context of one run, and keep it: errors are shown after click has closed it."""
        with reader_may_leave():  # it prints the help
            self._context = super().make_context(*args, **kwargs)
        return self._context

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and leave the process with the exit code; every error becomes one message on stderr."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        self._context = None
        _open_closed_streams()
        _import_from_here()
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            with suppress(OSError):
                error.show()
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            with suppress(OSError):
                click.echo("Interrupted.", err=True)
            code = INTERRUPTED
        except (Terminated, ReaderGone, BrokenPipeError):
            code = OK
        except Exception as error:
            with suppress(OSError):
                show(error, verbose=bool(self._context and self._context.meta.get("penstock.verbose")))
            code = exit_code(error)
        _forget_unread_output()
        sys.exit(code if isinstance(code, int) else OK)


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=lambda *given: _say_version(*given),
    help="Show the version and which parts are compiled, and exit.",
)  # fmt: skip
@verbose_option
def penstock() -> None:
    """Kafka Streams for Python, in your service or on Apache Spark.

    An application is a topology of processors with state stores. It reads topics, processes each
    record once, and writes topics. Topics live in a log: without further ado in the directory
    .penstock on this host; --log or PENSTOCK_LOG name another.
    """


class _Broken(click.Command):
    """A verb that cannot be loaded: listed with the reason, and an error when it is used."""

    def __init__(self, name: str, error: PenstockError) -> None:
        super().__init__(name, add_help_option=False)
        self.error = error

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        raise self.error

    def get_short_help_str(self, limit: int = 45) -> str:
        cause = self.error.__cause__ or self.error
        return click.style(f"cannot be loaded: {type(cause).__name__}: {cause}", fg="red")


def _load(component: Component) -> click.Command:
    try:
        found = component.load()
    except PenstockError as error:
        return _Broken(component.name, error)
    if not isinstance(found, click.Command):
        return _Broken(
            component.name,
            PluginError(
                f"command {component.name!r} of package {component.package} {component.package_version}: expected a "
                f"click command at {component.target!r}, found {type(found).__name__}"
            ),
        )
    return found


def _summary(component: Component, limit: int) -> str:
    origin = f" ({component.package} {component.package_version})"
    return _load(component).get_short_help_str(max(limit - len(origin), 20)) + click.style(origin, dim=True)


def _say_version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    click.echo(f"penstock, version {_version()}")
    import penstock.plugins.logs.kafka.columns  # noqa: F401 - says whether its part is compiled

    for part, state in status().items():
        click.echo(f"{part}: {state}")
    context.exit()


@cache
def _version() -> str:
    return installed_version(DISTRIBUTION) or "unknown"  # run from a source tree that was never installed


def _import_from_here() -> None:
    """Let modules be imported from the current directory, as `python -m` does and a script does not."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _open_closed_streams() -> None:
    """Open stdin, stdout and stderr where the command was started without them (`2>&-`), so that they lead nowhere.

    Python has no object for them, and the next file that is opened, a store's for instance, would take the number of
    stderr: libraries in C would write their messages into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 (until the process ends)
            os.set_inheritable(stream.fileno(), True)  # task hosts are processes of ours
            setattr(sys, name, stream)


def _forget_unread_output() -> None:
    """Discard buffered output whose reader has left, or the interpreter complains about it and exits with 120.

    So with remarks that a full disk did not take. Of data the exit code has said it.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if isinstance(error, BrokenPipeError) or stream is sys.stderr:
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), stream.fileno())
