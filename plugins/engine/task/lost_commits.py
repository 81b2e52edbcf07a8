"""Messages about committed offsets that expired or were deleted: possible causes, and how to go on."""

from __future__ import annotations

from penstock import Settings

NO_COMMIT = (
    "its positions were deleted or have expired (offsets.retention.minutes), a topic was deleted and made again, "
    "or this is another log"
)
"""Possible causes."""

MADE_AGAIN = "was deleted and made again since, and its positions went with it"
"""The cause, where the id of a topic is another one."""

KEEPS_NO_POSITIONS = (
    "a changelog that lives in the log keeps the newest value of each key and no positions, "
    "so nothing says up to where the state goes"
)
"""Why `reset --from-state` cannot use the state of a changelog like `topic:`."""


def ways_on(settings: Settings, *, partly: bool = False) -> str:
    """Return how to go on after a lost commit; `partly`: only some of its positions are lost."""
    if settings.log_changelog is not None and not partly:
        return (
            "To start now would process everything again. `penstock reset` starts the application afresh, from where "
            f"it says; its state cannot be kept, for {KEEPS_NO_POSITIONS}"
        )
    return (
        "To start now would process everything again. `penstock reset --from-state --dry-run` shows from where the "
        "application can go on with its state, and `penstock reset` starts it afresh"
    )
