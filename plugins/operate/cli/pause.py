"""The verbs `pause` and `resume`: an application, or a part of it, processes no records meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from .command import verb
from .options import application_options, find_application, open_log
from .output import print_text

if TYPE_CHECKING:
    from penstock import Application, Log
    from penstock.plugins.engine.task.notes import Paused


subtopologies_option = click.option(
    "--subtopology",
    "subtopologies",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this sub-topology, as `penstock describe` numbers them. Repeatable.",
)


@verb(
    ("Until its database is back", "penstock pause orders:application"),
    ("Only the part that writes to it", "penstock pause orders:application --subtopology 1"),
)
@subtopologies_option
@application_options
def pause(target: str, subtopologies: Sequence[int], **where: Any) -> None:
    """Let the application MODULE:ATTR process no records until `penstock resume`.

    Its run continues: tasks stay open, commit what they have processed, and can be queried; records wait in their topics,
    and no punctuator is called. It is a note in the log: a run takes it up within some seconds, and later runs begin
    paused.
    """
    from penstock.plugins.engine.program.pausing import pause

    change_pauses(target, subtopologies, pause, **where)


def change_pauses(
    target: str, subtopologies: Sequence[int], change: Callable[[Application, Log, Sequence[int]], Paused], **where: Any
) -> None:
    """Write the note, and print what is paused now."""
    from penstock.plugins.engine.program.pausing import change_stored

    named = find_application(target, **where)
    with open_log(named.settings) as log:
        application, now = change_stored(named, log, lambda stored: change(stored, log, subtopologies))
    paused = sorted(now.of(application))
    print_text(f"{application.id}: paused sub-topologies: {', '.join(map(str, paused)) or 'none'}\n")


@verb(
    ("All of it", "penstock resume orders:application"),
    ("One part; the others stay paused", "penstock resume orders:application --subtopology 1"),
)
@subtopologies_option
@application_options
def resume(target: str, subtopologies: Sequence[int], **where: Any) -> None:
    """Let the application MODULE:ATTR process records again after `penstock pause`.

    It continues where it was: every record that has come meanwhile is processed, and a punctuator that is due is called
    once.
    """
    from penstock.plugins.engine.program.pausing import resume

    change_pauses(target, subtopologies, resume, **where)
