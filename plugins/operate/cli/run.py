"""The verb `run`: an application on Spark, or on another engine."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from penstock import ConfigError, IncompatibleStateError, duration_ms

from .command import verb
from .failures import INTERRUPTED, StartRefusedError, ended_by_sigterm
from .log_lines import TEXT, cli_log, log_format_option, log_lines
from .options import application_options, find_application
from .output import ProgressMeter, count, note, print_json

if TYPE_CHECKING:
    from penstock.plugins.engine.run.progress import RunProgress, RunSummary
    from penstock.plugins.engine.task.local_state.restoring import RestoreProgress

AVAILABLE_NOW, CONTINUOUS = "available_now", "continuous"


@verb(
    ("Process what the topics hold, then end", "penstock run wordcount:application"),
    ("A batch every ten seconds until Ctrl-C, on four cores", "penstock run wordcount:application --trigger 10s --master 'local[4]'"),
    ("Records as they come, in milliseconds, until Ctrl-C", "penstock run wordcount:application --trigger continuous"),
    ("The same on this machine alone, without Spark and Java", "penstock run wordcount:application --trigger continuous --engine embedded"),
    ("A topology from a file, with an id and settings from here", "penstock run wordcount.py:topology --application-id counts --set commit_interval=5s"),
    ("Log lines for a collector of logs, and memory for Spark's JVM", "penstock run wordcount:application --log-format json --conf spark.driver.memory=4g"),
    ("What was done, for a program", "penstock run wordcount:application --json | jq .records_in"),
)  # fmt: skip
@click.option(
    "--trigger",
    metavar="WHEN",
    default=AVAILABLE_NOW,
    show_default=True,
    help="available_now: what there is, then end. continuous: records as they come. A time like 10s: a batch that often. "
    "The last two until Ctrl-C or SIGTERM.",
)
@click.option(
    "--until",
    type=click.Choice(["ends", "drained"]),
    help="How far available_now goes. ends: to the ends that source topics have now. drained: until source topics that "
    "the program itself writes are read to their ends, too. [default: ends]",
)
@click.option(
    "--engine",
    metavar="NAME",
    help="What runs the application: spark, embedded (this machine alone, without Spark and Java), or a plugin's. "
    "[default: the setting engine, which is spark]",
)
@click.option(
    "--master",
    metavar="URL",
    help="Spark's master, e.g. local[4] or spark://host:7077. [default: all cores of this host]",
)
@click.option("--conf", "given_conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark. Repeatable.")
@click.option(
    "--wait",
    "waits",
    is_flag=True,
    help="While another driver runs the application, wait until it ends, and take over.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve counts to Prometheus on this port. [default: the setting metrics_port, which is off]",
)
@application_options
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Which log lines of the application and its tasks are shown on stderr. [default: info; with --quiet warning]",
)
@log_format_option(
    "How log lines are shown. json: an object a line; progress, summary and the error that ends the run, too."
)
@click.option("--quiet", "-q", is_flag=True, help="No progress, no summary, and of log lines only warnings.")
@click.option("--json", "as_json", is_flag=True, help="At the end, print a summary as a JSON object.")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    target: str,
    trigger: str,
    until: str | None,
    engine: str | None,
    master: str | None,
    given_conf: tuple[str, ...],
    waits: bool,
    metrics_port: int | None,
    log_level: str | None,
    log_format: str,
    quiet: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Run the application MODULE:ATTR, on Spark unless --engine says otherwise.

    MODULE is a module or the path of a Python file; ATTR is an Application, a Topology (then
    --application-id is needed), or a function without arguments that returns one. Each record counts
    once, however often this is stopped, killed and started again. Ctrl-C and SIGTERM stop it cleanly: tasks
    finish their batch and commit.
    """
    if trigger not in (AVAILABLE_NOW, CONTINUOUS):
        _check_interval(trigger)

    from penstock.plugins.engine.run.order import RunOrder, Trigger

    when = Trigger.of(trigger, until)
    if metrics_port is not None:
        where["given"] = [*where["given"], f"metrics_port={metrics_port}"]
    if engine is not None:
        where["given"] = [*where["given"], f"engine={engine}"]
    application = find_application(target, **where)

    from penstock.hooks import registry
    from penstock.plugins.engine.run.engine import Engine

    options: dict[str, Any] = {}
    if master is not None:
        options["master"] = master
    if given_conf:
        from penstock.plugins.spark.sessions import parse_conf

        options["conf"] = parse_conf(given_conf)
    found: Engine = registry().load("engine", application.settings["engine"])()
    found.check_options(application, options)
    say = note if log_format == TEXT else cli_log.info
    # The runner handles signals once it runs. Until then a SIGTERM must release the lease.
    with ended_by_sigterm(), log_lines(log_level or ("warning" if quiet else "info"), log_format, application.id):
        with ProgressMeter(f"running {application.id}", quiet=quiet, say=say) as meter:
            meter.say(f"starting {found.title}")
            has_begun = threading.Event()
            order = RunOrder(
                when, lambda progress: _show(meter, progress, trigger), waits=waits, on_start=has_begun.set
            )
            try:
                summary = found.run(application, order, **options)
            except IncompatibleStateError as error:
                if has_begun.is_set():
                    raise
                raise StartRefusedError(str(error)) from error
        if as_json:
            print_json(asdict(summary))
        elif not quiet:
            say(_sentence(summary))
    if summary.stopped_by == "SIGINT":
        ctx.exit(INTERRUPTED)


def _check_interval(trigger: str) -> None:
    try:
        duration_ms(trigger)
    except ConfigError:
        raise ConfigError(
            f"--trigger {trigger!r}: expected {AVAILABLE_NOW}, {CONTINUOUS}, or a time like 10s or 500ms"
        ) from None


def _show(meter: ProgressMeter, progress: RunProgress, trigger: str) -> None:
    """Show the progress of a run. Only one that drains its topics has a total."""
    draining = trigger == AVAILABLE_NOW
    meter.update(
        progress.records_in,
        done=progress.records_in if draining else None,
        total=progress.records_in + progress.lag if draining else None,
        lag=progress.lag,
        rate=progress.records_per_second,
        rate_out=progress.records_out_per_second,
        text=restoring_text(progress.restoring.values())
        or (count(progress.tasks, "task") if trigger == CONTINUOUS else f"batch {progress.batches}"),
    )


def _sentence(summary: RunSummary) -> str:
    rate = summary.records_in / max(summary.seconds, 0.001)
    parts = [
        f"{count(summary.records_in)} in, {summary.records_out:,} out",
        f"{count(summary.dropped)} dropped" if summary.dropped else "",
        f"in {count(summary.batches, 'batch', 'batches')}",
        f"of {count(summary.tasks, 'task')}",
        f"in {summary.seconds:.1f} s ({rate:,.0f} records/s)",
    ]
    end = f", stopped by {summary.stopped_by}" if summary.stopped_by else ""
    return f"{summary.application_id}: {' '.join(part for part in parts if part)}, lag {summary.lag:,}{end}"


def restoring_text(tasks: Collection[RestoreProgress]) -> str:
    """Return the progress of the tasks' restores as text; "" for none."""
    if not tasks:
        return ""
    shares = [task.share for task in tasks if task.share is not None]
    left = [task.seconds_left for task in tasks if task.seconds_left is not None]
    parts = [
        f"restoring {count(len(tasks), 'task')}",
        f"{sum(shares) / len(tasks):.0%}" if shares else "",
        f"{sum(task.entries_per_second for task in tasks):,.0f} entries/s",
        f"{max(left):,.0f} s to go" if left else "",
    ]
    return ", ".join(filter(None, parts))
