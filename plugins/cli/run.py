"""The verb `run`: an application on Spark."""

from __future__ import annotations

import click

from .command import Command, verbose_option
from .options import data_dir_option, log_option


@click.command(
    cls=Command,
    examples=[
        ("Process what the topics hold, then end", "penstock run wordcount:application"),
        ("A batch every ten seconds until Ctrl-C, on four cores", "penstock run wordcount:application --trigger 10s --master 'local[4]'"),
        ("A topology from a file, with an id and settings from here", "penstock run wordcount.py:topology --application-id counts --set commit_interval=5s"),
        ("What was done, for a program", "penstock run wordcount:application --json | jq .records_in"),
    ],
)  # fmt: skip
@click.argument("target", metavar="MODULE:ATTR")
@click.option(
    "--trigger",
    metavar="WHEN",
    default="available_now",
    show_default=True,
    help="available_now: what there is, then end. A time like 10s: a batch that often, until Ctrl-C or SIGTERM.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Spark's master, e.g. local[4] or spark://host:7077. [default: all cores of this host]",
)
@click.option("--application-id", metavar="ID", help="The id of a Topology, or another id for an Application.")
@click.option(
    "--set",
    "-s",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the application, e.g. commit_interval=5s, processing_handler=skip, user.limit=10. Repeatable.",
)
@log_option
@data_dir_option
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
@click.option("--json", "as_json", is_flag=True, help="At the end, print a summary as a JSON object.")
@verbose_option
def run(
    target: str,
    trigger: str,
    master: str | None,
    application_id: str | None,
    given: tuple[str, ...],
    log: str | None,
    data_dir: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run the application MODULE:ATTR on Spark.

    MODULE is a module or the path of a Python file; ATTR is an Application, a Topology (then
    --application-id is needed), or a function without arguments that returns one. Each record counts
    once, however often this is stopped, killed and started again. Ctrl-C and SIGTERM stop it cleanly: tasks
    finish their batch and commit.
    """
