"""Output of the verbs: data on stdout, tables and progress on stderr.

Rich draws them on a terminal; elsewhere they are plain text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

import click

from penstock import Clock, SystemClock
from penstock.support.printable import on_one_line, printable

from .failures import ReaderGone

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PLAIN_INTERVAL_MS, LONG_INTERVAL_MS, SHORT_MS = 5_000, 60_000, 30_000
"""Time between two lines of progress when stderr is no terminal; the second without news, and once what is done takes
longer than the third, so that a log does not fill with them."""


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Turn the error of writing to a closed pipe into `ReaderGone`, which ends the command without a message."""
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None


@contextmanager
def remarks_may_be_lost() -> Iterator[None]:
    """Drop remarks if stderr is on a full disk: the command's work counts, and its exit code.

    A closed pipe is still an error.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        pass


def console(**options: Any) -> Console:
    """Return a console of rich on stdout. Rich itself would exit with 1 when the reader has left."""
    import rich.console

    class Console(rich.console.Console):
        def on_broken_pipe(self) -> None:
            raise ReaderGone

    return Console(highlight=False, **options)


def print_json(value: Any) -> None:
    """Print one JSON document for a program to read: indented on a terminal, one line elsewhere."""
    import json

    indent = 2 if sys.stdout.isatty() else None
    with reader_may_leave():
        click.echo(printable(json.dumps(value, indent=indent, ensure_ascii=False)))


def print_text(text: str, *, bold: bool = False) -> None:
    """Print text, `bold` on a terminal."""
    with reader_may_leave():
        text = printable(text)
        click.echo(click.style(text, bold=True) if bold else text, nl=not text.endswith("\n"))


def data_output() -> IO[bytes]:
    """Return the stream for lines of data: stdout, byte for byte; on a terminal control characters are escaped."""
    return cast("IO[bytes]", _TerminalOutput()) if sys.stdout.isatty() else sys.stdout.buffer


class _TerminalOutput:
    """Takes whole lines of data, which records may have made, and shows them on the terminal."""

    def write(self, lines: bytes) -> int:
        """Write lines, with control characters escaped that would affect the terminal."""
        text = printable(lines.decode("utf-8", "backslashreplace"))
        sys.stdout.buffer.write(text.encode(sys.stdout.encoding, "backslashreplace"))
        return len(lines)

    def flush(self) -> None:
        sys.stdout.buffer.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[str] = ()) -> None:
    """Print rows under column headings: a table of rich on a terminal, aligned columns without lines elsewhere.

    `numbers` names the columns that are aligned to the right. A cell of None is shown as "-".
    """
    cells = [["-" if cell is None else on_one_line(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        with reader_may_leave():
            console().print(table)
        return
    lines = [[column.upper() for column in columns], *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        for line in lines
    ]
    print_text("\n".join(line.rstrip() for line in aligned))


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    as_json: bool,
    columns: Sequence[str],
    cells: Iterable[Sequence[object]] | None = None,
    *,
    numbers: Sequence[str] = (),
    none: str,
) -> None:
    """Print rows as JSON, or as a table with these cells (None: their values); without rows say `none` on stderr."""
    if as_json:
        print_json(rows)
    elif rows:
        print_table(columns, [list(row.values()) for row in rows] if cells is None else list(cells), numbers=numbers)
    else:
        note(none)


def note(text: str) -> None:
    """Print a remark on stderr, beside the data."""
    with remarks_may_be_lost():
        click.echo(printable(text), err=True)


def count(number: float, one: str = "record", many: str | None = None) -> str:
    """Return a number with its noun.

    >>> count(1), count(12000), count(2, "batch", "batches")
    ('1 record', '12,000 records', '2 batches')
    """
    return f"{number:,.0f} {one if number == 1 else many or one + 's'}"


class ProgressMeter:
    """Shows progress on stderr: on a terminal a bar with records/s and lag, elsewhere a plain line now and then.

    A context manager. `update` counts `done` up to `total` (None: unknown). `quiet` shows nothing; `say` prints a line.
    """

    def __init__(
        self,
        title: str,
        total: float | None = None,
        *,
        quiet: bool = False,
        clock: Clock | None = None,
        say: Callable[[str], None] = note,
    ) -> None:
        self._title = title
        self._say = say
        self._total = total
        self._quiet = quiet
        self._clock = clock or SystemClock()
        self._started = self._shown = self._clock.now_ms()
        self._line = ""
        self._bar: Progress | None = None
        self.records = 0

    def __enter__(self) -> ProgressMeter:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
                refresh_per_second=4,
            )
            self._bar.start()
            self._bar.add_task(self._title, total=self._total, text="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return (self._clock.now_ms() - self._started) / 1000

    @property
    def records_per_second(self) -> float:
        """Records so far by time so far."""
        return self.records / max(self.seconds, 0.001)

    def say(self, text: str) -> None:
        """Show a text beside the bar, before the first record."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], text=text)

    def update(
        self,
        records: int,
        *,
        done: float | None = None,
        total: float | None = None,
        lag: int | None = None,
        rate: float | None = None,
        rate_out: float | None = None,
        text: str = "",
    ) -> None:
        """Show the progress: `records` so far, `done` of `total`, `lag` records left, and `text`.

        `rate` is the speed in records/s (None: the average so far), `rate_out` that of records written.
        """
        self.records = records
        if self._quiet:
            return
        rate = self.records_per_second if rate is None else rate
        speed = f"{rate:,.0f} records/s" + ("" if rate_out is None else f" in, {rate_out:,.0f} out")
        parts = [text, count(records), speed, "" if lag is None else f"lag {lag:,}"]
        line = " · ".join(part for part in parts if part)
        whole = self._total if total is None else total
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=whole, text=line)
            return
        now = self._clock.now_ms()
        is_early = now - self._started <= SHORT_MS
        interval = PLAIN_INTERVAL_MS if is_early and line != self._line else LONG_INTERVAL_MS
        if now - self._shown >= interval:
            self._shown, self._line = now, line
            share = f" {done / whole:.0%}" if done is not None and whole else ""
            self._say(f"{self._title}{share} · {line}")
