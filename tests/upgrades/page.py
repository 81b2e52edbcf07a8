"""The page of the documentation that shows the upgrade matrix, made from its data."""

from __future__ import annotations

from .changes import CHANGES, EVERY, Change, Outcome, Refused
from .dsl_changes import DSL_CHANGES

PAGE = "docs/upgrade_matrix.md"

_HEAD = """\
# Changes, one by one

<!-- Made by `python -m tests.upgrades` from tests/upgrades/changes.py. -->

This table shows what happens at each kind of change between two starts of an application, and when it is rolled back. A
test makes every change, with records before, between and after; with this host's copy of the state and after it was
lost; and with the changelogs `directory:` and `topic:`. It compares stores and outputs with a plain computation from
the records. [Changing a program](upgrading.md) has the rules. Another test opens a data directory that was saved with
every kind of store, those of the DSL included, and goes on with it; a change of any of their formats fails there.

"Continues": positions and state are kept, and nothing is lost or counted twice. "Refused": the start fails with an
error that says what has changed and what to do. It changes nothing, and the version before the change still runs.
"""
_DSL = """
## Verbs of the DSL

Tests start programs of every verb that keeps state four times, the second and the third time with the change. Each
later start begins with late records, and leaves a gap in time behind. The first three changes are made with every verb
that has state, or windows: what is sent is the same as without a change.

| what changes | there | and back |
|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for group, changes in CHANGES.items():
        parts += [f"\n## {group}\n\n", "| what changes | there | and back |\n|---|---|---|\n", *map(_row, changes)]
    parts += [_DSL, *(f"| {each.name} | {each.there} | {each.back} |\n" for each in DSL_CHANGES)]
    return "".join(parts)


def _row(change: Change) -> str:
    name = change.name
    if change.changelogs != EVERY:
        name += f" (with `{change.changelogs[0]}:`)"
    back = "" if isinstance(change.there, Refused) else _shown(change.back, change.lost_back)
    return f"| {name} | {_shown(change.there, change.lost_there)} | {back} |\n"


def _shown(outcome: Outcome, lost: Outcome | None) -> str:
    return outcome.text if lost is None else f"{outcome.text}; without this host's copy: {lost.text}"
