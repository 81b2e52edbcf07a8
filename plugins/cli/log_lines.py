"""Log lines of an application on the operator's terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LogLines(logging.Handler):
    """Prints log records on stderr, above a progress bar if there is one.

    The level is left out where it is INFO, which is what an application says in passing.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if record.name == "root" and Path(record.pathname).parent.name == "py4j":
            return  # a traceback when the JVM has ended, which the runner says in one sentence
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        # Not click.echo: while a bar is shown, rich puts an object of its own in the place of stderr.
        print(f"{level}{self.format(record)}", file=sys.stderr, flush=True)


@contextmanager
def log_lines(level: str) -> Iterator[None]:
    """Show what applications log from `level` on, and of the libraries below them only warnings."""
    root, handler = logging.getLogger(), LogLines()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    levels = {root: level.upper()} | {logging.getLogger(library): "WARNING" for library in ("py4j", "pyspark")}
    before = {logger: logger.level for logger in levels}
    root.addHandler(handler)
    for logger, wanted in levels.items():
        logger.setLevel(wanted)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, level_before in before.items():
            logger.setLevel(level_before)
