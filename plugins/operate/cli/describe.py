"""The verbs `describe` and `config`: an application's topology, and its settings in force."""

from __future__ import annotations

from typing import Any

import click

from .command import verb, verbose_option
from .options import application_options, find_application
from .output import print_json, print_table, print_text


@verb(
    ("As Kafka Streams' Topology#describe prints it (existing viewers read it)", "penstock describe wordcount:application"),
    ("A picture for a page of Markdown", "penstock describe wordcount:application --format mermaid"),
    ("A picture file", "penstock describe examples/02_word_count.py:application --format svg > topology.svg"),
    ("The stores, for a program", "penstock describe wordcount:application --json | jq .stores"),
)  # fmt: skip
@click.option(
    "--format",
    "form",
    metavar="NAME",
    default="text",
    show_default=True,
    help="text: Kafka Streams' own format; svg: a drawing; mermaid and dot: to be drawn; json: for programs; or another "
    "installed renderer.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@verbose_option
def describe(target: str, form: str, as_json: bool) -> None:
    """Show the topology of MODULE:ATTR: sub-topologies, sources, processors, stores and sinks.

    MODULE is a module or the path of a Python file; ATTR is an Application, a Topology, a StreamsBuilder, or a function
    without arguments that returns one. Nothing is run, and no log is opened.
    """
    from .target import load_program

    print_text(load_program(target).render("json" if as_json else form))


@verb(
    ("What would be in force in this directory and environment", "penstock config wordcount:application"),
    ("With the settings of a file and one of the command line", "penstock config wordcount:application --config production.toml --set commit_interval=5s"),
    ("What is no default, for a program", "penstock config wordcount:application --json | jq '.settings | map_values(select(.origin != \"default\"))'"),
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="A JSON object with 'application_id' and 'settings'.")
@application_options
def config(target: str, as_json: bool, **where: Any) -> None:
    """Show the settings that MODULE:ATTR would run with, and where each came from.

    The command line wins over the environment, that over the file, that over the program. Secrets are shown as
    stars. Nothing is run, and no log is opened.
    """
    from penstock.plugins.operate.settings.settings_in_force import settings_in_force

    rows = settings_in_force(find_application(target, **where))
    if as_json:
        print_json(
            {
                "application_id": {"value": rows[0][1], "origin": rows[0][2]},
                "settings": {name: {"value": value, "origin": origin} for name, value, origin in rows[1:]},
            }
        )
    else:
        print_table(["setting", "value", "origin"], rows)
