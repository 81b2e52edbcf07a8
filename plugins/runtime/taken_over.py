"""Whether an error says that another process has taken a task over: hosts and the driver ask the same function."""

from __future__ import annotations

from penstock.errors import FencedError, StaleStoreError


def is_taken_over(error: BaseException) -> bool:
    """Return whether a task ended because another process has it, in the log or in its local store.

    The run continues after that: the next batch opens the task again, from the last commit.
    """
    return isinstance(error, (FencedError, StaleStoreError))
