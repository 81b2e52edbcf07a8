"""The kinds of change to a program of the DSL, as the page of the upgrade matrix shows them.

Those in `SAME` are made with each verb by test_dsl.py, which sends what the program sends that did not change. The
others are in test_windows.py and test_joins_and_suppressions.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .dsl_programs import IN_FRONT, NAMED, PROGRAMS, Chosen


@dataclass(frozen=True)
class DslChange:
    """A kind of change, and what comes of it on the way there and back."""

    name: str
    there: str = "continues"
    back: str = "continues"


_WINDOWS = ("tumbling", "hopping", "sliding", "sessions", "cogroup, ", "windows of one's own")
SAME: Mapping[str, tuple[Chosen, Sequence[str]]] = {
    "a verb in front, stores have names": (IN_FRONT, list(PROGRAMS)),
    "a name given to a node": (NAMED, list(PROGRAMS)),
    "`retention` of windows": (
        Chosen(options={"retention": "1h"}), [each for each in PROGRAMS if each.startswith(_WINDOWS)],
    ),
}  # fmt: skip
CLOSED = "continues; windows that have closed stay closed"
DSL_CHANGES = [
    *map(DslChange, SAME),
    DslChange(
        "windows of another size, advance, difference, gap, start or kind over a store",
        "refused: what is in open windows would be counted wrongly",
        "",
    ),
    DslChange("a longer `grace` of windows", CLOSED),
    DslChange("a shorter `grace` of windows", back=CLOSED),
    DslChange(
        '`emit="on_close"`',
        "continues; windows that are open are sent when they close",
        "continues; windows that are open are sent with the next record",
    ),
    DslChange("`idle` taken away", back="continues; idle time counts from then"),
    DslChange("another window, `grace` or `retention` of a join", "continues; each record by what is in force"),
    DslChange("`grace` of a join with a table", "continues; what waits then, too"),
    DslChange("`until` of `suppress`", "continues; what waits leaves once"),
]
