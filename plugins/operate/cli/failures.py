"""How an error ends the command line: one message on stderr and an exit code, no traceback."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import click

from penstock import ConfigError, MissingPackageError, PenstockError, PluginError, TopologyError
from penstock.support.printable import printable
from penstock.support.system_errors import what_to_do
from penstock.support.user_line import user_line

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: done; failed while running; nothing was started; Ctrl-C."""

_BEFORE_THE_START = (ConfigError, MissingPackageError, PluginError, TopologyError)


class ApplicationError(ConfigError):
    """What MODULE:ATTR names cannot be found, imported, or is not an application."""


class StartRefusedError(ConfigError):
    """The application does not fit what it has saved, so nothing was started."""


class Terminated(BaseException):
    """SIGTERM arrived: end cleanly. Like KeyboardInterrupt it is no Exception."""


class ReaderGone(BaseException):
    """The reader of our output has ended (`| head`): stop without a message.

    It is no Exception, so that no `except Exception` catches it.
    """


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that everything is closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def exit_code(error: BaseException) -> int:
    """Return the exit code for a kind of error."""
    return USAGE if isinstance(error, _BEFORE_THE_START) else FAILED


def show(error: Exception, *, verbose: bool) -> None:
    """Print `error` on stderr: one message, and the traceback only if asked for."""
    verbose = verbose or wants_traceback()
    if verbose:
        click.echo(printable("".join(traceback.format_exception(error))), err=True, nl=False)
    click.echo(click.style("Error: ", fg="red", bold=True) + printable(sentence(error)), err=True)
    if not verbose and not isinstance(error, PenstockError):
        click.echo("Add --verbose (or set PENSTOCK_DEBUG=1) to see the traceback.", err=True)


def sentence(error: Exception) -> str:
    """Return an error's message in one line, and the line of the user's code that raised it."""
    place = user_line(error)
    if isinstance(error, PenstockError):
        text = str(error)
        return text if place is None or str(place) in text else f"{text} ({place})"
    where = str(place or _innermost_line(error))
    text = str(error) or "no message"
    fix = what_to_do(error, "use another directory (TMPDIR, `data_dir`)") if isinstance(error, OSError) else None
    if fix is not None:
        text = f"{text}; {fix}"
    return f"unexpected {type(error).__name__}: {text}" + (f" ({where})" if where else "")


def wants_traceback() -> bool:
    """Return whether PENSTOCK_DEBUG asks for tracebacks."""
    return os.environ.get("PENSTOCK_DEBUG", "") not in ("", "0")


def _innermost_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno}" if frames else ""
