"""The verb `resume`: ends what `penstock pause` began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .command import verb
from .options import application_options
from .pause import change_pauses, subtopologies_option


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
