"""SparkFailure: Spark ended a query, and what its long error says in a line."""

from __future__ import annotations

import errno
import re

from penstock.support.system_errors import error_number, what_to_do

_CAUSES = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class SparkFailure(Exception):
    """Spark ended the query, not a task: a lost worker or a damaged checkpoint. `stays`: a retry would fail, too."""

    def __init__(self, text: str, stays: bool = False) -> None:
        super().__init__(text)
        self.stays = stays


def explain(text: str, checkpoint: str = "its checkpoint") -> str:
    """Return the message of a Spark error, without its stack and its plan.

    A full disk, or too many open files, is the cause of other errors and is returned first.
    """
    cause = cause_in(text)
    if cause is not None:
        fix = what_to_do(cause, f"set `checkpoint_dir` (now {checkpoint}) or SPARK_LOCAL_DIRS to another directory")
        return f"{cause}; {fix}"
    traceback = re.findall(
        r"^(\w[\w.]*(?:Error|Exception|Interrupt)\b.*)$", text.partition("Traceback (most recent call last)")[2], re.M
    )
    if traceback:
        return str(traceback[-1]).strip()
    lines = [line.strip() for line in text.partition("=== Streaming Query ===")[0].splitlines()]
    kept = [line for line in lines if line and not re.match(r"(at |\.\.\. \d+ more|Driver stacktrace)", line)]
    return " ".join(kept[:3]) or "no reason given"


def cause_in(text: str) -> str | None:
    """Return the line of a Spark error about a full or unwritable disk, or about too many open files."""
    return next(
        (line.strip().removeprefix("Caused by: ") for line in text.splitlines() if error_number(line) in _CAUSES), None
    )
