"""Messages about committed offsets that expired or were deleted: possible causes, and how to go on."""

from __future__ import annotations

from penstock.settings.settings import Settings

NO_COMMIT = (
    "its positions were deleted or have expired (offsets.retention.minutes), a topic was deleted and made again, "
    "or this is another log"
)
"""Possible causes."""

KEEPS_NO_POSITIONS = (
    "a changelog that lives in the log keeps the newest value of each key and no positions, "
    "so nothing says up to where the state goes"
)
"""Why `reset --from-state` cannot use the state of a changelog like `topic:`."""


def ways_on(settings: Settings, *, partly: bool = False) -> str:
    """Return how to go on after a lost commit; `partly`: only some of its positions are lost."""
    if settings.changelog_is_in_log and not partly:
        return (
            "To start now would process everything again. `penstock reset` starts the application afresh, from where "
            "it says; its state "
            f"cannot be kept, for {KEEPS_NO_POSITIONS}"
        )
    return (
        "To start now would process everything again. `penstock reset --from-state --dry-run` shows from where the "
        "application can go on "
        "with its state, and `penstock reset` starts it afresh"
    )
