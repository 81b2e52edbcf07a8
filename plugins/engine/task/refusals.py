"""Refuses saved data that this process cannot read, with advice on how to continue without a lost commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock import IncompatibleStateError, Settings
from penstock.program.compatibility import of_other_version
from penstock.program.layouts import Layouts, id_of_version

_BEGIN_AFRESH = (
    "this version does not read it. Run the program under another application id, which starts afresh, or "
    "`penstock reset` it"
)
NO_COMMIT = (
    "its positions were deleted or have expired (offsets.retention.minutes), a topic was deleted and made again, "
    "or this is another log"
)
"""Possible causes of a commit that the log does not have."""

MADE_AGAIN = "was deleted and made again since, and its positions went with it"
"""The cause, where the id of a topic is another one than before."""

KEEPS_NO_POSITIONS = (
    "a changelog that lives in the log keeps the newest value of each key and no positions, "
    "so nothing says up to where the state goes"
)
"""Why `reset --from-state` cannot use the state of a changelog like `topic:`."""


def check_note(application_id: str, note: Mapping[str, Any]) -> None:
    """Raise IncompatibleStateError for the note of a program that another version of penstock ran."""
    if reason := of_other_version(note["fingerprint"]):
        raise IncompatibleStateError(f"application {application_id!r}, its saved program: {reason}; {_BEGIN_AFRESH}")


def check_layout(where: str, version: str, layouts: Layouts) -> None:
    """Raise IncompatibleStateError if a commit has other stores than any program that this process has heard of.

    That program was deployed while this process was frozen: the local copy would lack stores.
    """
    if id_of_version(version) is not None and layouts.of_version(version) is None:
        raise IncompatibleStateError(
            f"{where}: its last commit (state version {version}) is of a program with other stores, which was deployed "
            "after this process had started: nothing was changed; end this process, and start the present program"
        )


def ways_on(settings: Settings, *, partly: bool = False) -> str:
    """Return advice after a lost commit; `partly`: only some of its positions are lost."""
    if settings.log_changelog is not None and not partly:
        return (
            "To start now would process everything again. `penstock reset` starts the application afresh, from where "
            f"it says; its state cannot be kept, for {KEEPS_NO_POSITIONS}"
        )
    return (
        "To start now would process everything again. `penstock reset --from-state --dry-run` shows from where the "
        "application can go on with its state, and `penstock reset` starts it afresh"
    )
