"""The verb `top`: an application's activity, redrawn continuously in a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.plugins.operate.console.watch import TaskView, View, Watch
from penstock.plugins.operate.console.wording import ago, latency, length, opening, per_second, size, sparkline
from penstock.support.printable import printable

from .command import verb
from .options import application_options, followed, timeout_option
from .output import console, count, reader_may_leave

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLOURS = {"running": "green", "failed": "red", "lost": "red"}
_PLAIN_WIDTH, _PLAIN_HEIGHT = 120, 50
"""Of a frame that does not go to a terminal."""
_MOST_HOSTS, _MOST_NODES, _MOST_EVENTS = 6, 8, 5


@verb(
    ("Until Ctrl-C", "penstock top wordcount:application"),
    ("One frame as plain text", "penstock top wordcount:application --once"),
)
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option("--interval", metavar="TIME", default="2s", show_default=True, help="How often it is drawn.")
@timeout_option
@application_options
def top(target: str, once: bool, interval: str, **where: Any) -> None:
    """Show what the application MODULE:ATTR does now, until Ctrl-C.

    State, rates, latency, lag and memory with their history, the busiest nodes, task hosts, the tasks furthest behind,
    and events, as much as the terminal has room for. Counts and places are what the driver wrote to the log, every five
    seconds; lag is read now. Spark is not needed, and this may run on another host.
    """
    from rich.live import Live

    is_terminal = sys.stdout.isatty()
    with followed(target, follow=not once, interval=interval, **where) as (application, log, steps):
        watch = Watch(application, log)
        if once or not is_terminal:
            for _ in steps:
                view = watch.look()
                if view.error is not None and once:
                    raise view.error
                with reader_may_leave():
                    console(width=None if is_terminal else _PLAIN_WIDTH).print(
                        _frame(view, _PLAIN_WIDTH, _PLAIN_HEIGHT)
                    )
            return
        with Live(console=console(), screen=True, auto_refresh=False) as live:
            for _ in steps:
                live.update(_frame(watch.look(), *shutil.get_terminal_size()), refresh=True)


def _frame(view: View, width: int, height: int) -> RenderableType:
    """Return the view as as many lines as there are, or fewer."""
    from rich.console import Group

    head = _head(view, width)
    parts: list[RenderableType] = [*head]
    left = height - len(head)
    for titles, rows, most in _tables(view):
        # Beside its rows a table has a line above it, a heading, and a line about hidden rows.
        room = min(most, left - 2)
        if len(rows) > room:
            room -= room == left - 2
        if room <= 0:
            continue
        parts += ["", _table(titles, rows[:room])]
        left -= min(len(rows), room) + 2
        if len(rows) > room:
            parts.append(f"... {len(rows) - room:,} more")
            left -= 1
    return Group(*parts)


def _head(view: View, width: int) -> list[RenderableType]:
    from rich.text import Text

    run, rate = view.run, view.interval.rate
    title = Text.assemble((view.application_id, "bold"), "  ", (_line(view.phase), _COLOURS.get(view.state, "yellow")))
    lines = [title]
    if view.error is not None:
        lines.append(Text(_line(f"as of the look before: {view.error}"), "red"))
    if run is not None:
        since = f" for {length((run.written_ms - run.since_ms) / 1000)}" if view.state == "running" else ""
        title.append(f"{since}, as of {ago(run.written_ms, view.now_ms)} ago  ·  {run.trigger}  ·  {run.driver}")
        if view.trouble:
            lines.append(Text(_line(view.trouble), "red"))
        of_run = run.records_per_second if view.state == "running" else None
        records_in = of_run if rate is None else rate.records_in
        facts = [
            f"{per_second(records_in)} in",
            f"{per_second(None if rate is None else rate.records_out)} out",
            f"99 % in {latency(view.interval.latency)}",
            f"{count(run.commits, 'commit')}",
            f"{run.dropped:,} dropped",
            f"{len(run.tasks)} tasks, {sum(task.is_open for task in run.tasks)} open",
        ]
        lines.append(Text(" · ".join(facts)))
    bars = max(10, min(60, width - 30))
    history = view.samples
    memory = history[-1].memory_bytes if history else None
    for name, values, now in (
        ("in", [None if each.rate is None else each.rate.records_in for each in history], ""),
        ("latency", [each.latency for each in history], latency(history[-1].latency if history else None)),
        ("lag", [each.lag for each in history], f"{view.total_lag:,}" if view.is_lag_known else ""),
        ("memory", [each.memory_bytes for each in history], size(memory) if memory is not None else ""),
    ):
        lines.append(Text.assemble((f"{name:8}", "cyan"), sparkline(values, bars), f" {now}"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return [*lines]


_Table = tuple[Sequence[str], list[Sequence[str]], int]


def _tables(view: View) -> Iterable[_Table]:
    """Yield titles, rows, and how many rows are shown at most."""
    run = view.run
    if run is not None and run.hosts:
        rows = [
            (str(host.slot), f"{host.host}/{host.process}", f"{host.open_tasks}", size(host.rss_bytes),
             length(host.cpu_seconds), f"{host.threads}", f"{host.descriptors}")
            for host in run.hosts
        ]  # fmt: skip
        yield ("slot", "task host", "tasks", "memory", "cpu", "threads", "files"), [*rows], _MOST_HOSTS
    if run is not None and run.nodes:
        rates = view.interval.nodes
        names = sorted(run.nodes, key=lambda name: (-rates[name].records_in if name in rates else 0, name))
        nodes = [
            (name, *(per_second(each) for each in ((rates[name].records_in, rates[name].records_out) if name in rates else (None, None))),
             f"{run.nodes[name]['in']:,}", f"{run.nodes[name]['out']:,}", f"{sum(run.nodes[name]['dropped'].values()):,}")
            for name in names
        ]  # fmt: skip
        yield ("node", "in", "out", "records in", "records out", "dropped"), [*nodes], _MOST_NODES
    if run is not None and run.events:
        events = [(ago(event.at_ms, view.now_ms), event.text) for event in reversed(run.events)]
        yield ("ago", "event"), [*events], _MOST_EVENTS
    tasks = sorted(view.tasks(), key=lambda each: -(each.lag or 0))
    titles = ("task", "where", "lag", "in", "records in", "records out", "dropped", "last commit")
    yield titles, [_task(task, view) for task in tasks], len(tasks)


def _task(task: TaskView, view: View) -> Sequence[str]:
    lag, status = "-" if task.lag is None else f"{task.lag:,}", task.status
    if status is None:
        return (task.name, "-", lag, *["-"] * 5)
    where = "-" if status.process is None else f"{status.host}/{status.process}"
    return (
        task.name, where if status.is_open or view.state != "running" else opening(status), lag,
        per_second(status.records_per_second) if view.state == "running" else "-",
        f"{status.records_in:,}", f"{status.records_out:,}", f"{status.dropped:,}",
        "-" if status.last_commit_ms is None else ago(status.last_commit_ms, view.now_ms),
    )  # fmt: skip


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in titles:
        is_text = title in ("task", "where", "node", "task host", "event", "ago")
        table.add_column(title, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
    for row in rows:
        # An event may have the text of an error, and that what a record has.
        table.add_row(*(Text(_line(cell)) for cell in row))
    return table


def _line(text: str) -> str:
    """Return text for one line of a terminal, with control characters escaped."""
    return printable(" ".join(text.splitlines()))
