"""Log lines of an application on the operator's terminal, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import click

from penstock import PenstockError
from penstock.plugins.engine.host.log_lines import with_place
from penstock.support.printable import printable

from .command import AnyFunction
from .failures import exit_code, sentence, wants_traceback

cli_log = logging.getLogger("penstock.cli")

TEXT, JSON = "text", "json"

_QUIET = ("py4j", "pyspark")


def log_format_option(help: str) -> Callable[[AnyFunction], AnyFunction]:
    """Add `--log-format`, which `log_lines` takes."""
    return click.option(
        "--log-format",
        type=click.Choice((TEXT, JSON)),
        default=TEXT,
        show_default=True,
        envvar="PENSTOCK_LOG_FORMAT",
        show_envvar=True,
        help=help,
    )


class LogLines(logging.Handler):
    """Prints log records on stderr, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "root" and Path(record.pathname).parent.name == "py4j":
            return  # a traceback when the JVM has ended, which the runner says in one sentence
        # An error would be one of the task that logs: it has done nothing wrong.
        with suppress(OSError):
            # Not click.echo: while a bar is shown, rich puts an object of its own in the place of stderr.
            print(printable(self.format(with_place(record))), file=sys.stderr, flush=True)


class TextLines(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE`, and below it the traceback if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time with its zone."""
        return _time(record)


class JsonLines(logging.Formatter):
    """An object a line: `time`, `level`, `logger`, `message`, `application`; where known `task`, `node`, `exception`."""

    def __init__(self, application_id: str) -> None:
        super().__init__()
        self._application_id = application_id

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": getattr(record, "said", None) or record.getMessage(),
            "application": self._application_id,
            "task": getattr(record, "task", ""),
            "node": getattr(record, "node", ""),
            "exception": record.exc_text,
        }
        return json.dumps({name: value for name, value in line.items() if value}, ensure_ascii=False)


@contextmanager
def log_lines(level: str, format: str = TEXT, application_id: str = "") -> Iterator[None]:
    """Show log lines of applications from `level` on, and only warnings of the libraries below them.

    As JSON, an error that ends the block is such a line as well, and leaves with its exit code.
    """
    root, handler = logging.getLogger(), LogLines()
    handler.setFormatter(JsonLines(application_id) if format == JSON else TextLines())
    levels = {root: level.upper()} | {logging.getLogger(library): "WARNING" for library in _QUIET}
    before = {logger: logger.level for logger in levels}
    root.addHandler(handler)
    for logger, wanted in levels.items():
        logger.setLevel(wanted)
    try:
        yield
    except Exception as error:
        if format != JSON:
            raise
        is_known = isinstance(error, PenstockError) and not wants_traceback()
        cli_log.error("%s", sentence(error), exc_info=None if is_known else error)
        raise click.exceptions.Exit(exit_code(error)) from error
    finally:
        root.removeHandler(handler)
        for logger, level_before in before.items():
            logger.setLevel(level_before)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
