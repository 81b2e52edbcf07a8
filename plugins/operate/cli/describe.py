"""The verb `describe`: shows an application's topology."""

from __future__ import annotations

import click

from .command import verb, verbose_option
from .output import print_text


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
