"""Directories and files that only this user can read, whatever the umask: records and state may be confidential."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import RuntimeUnavailableError

FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700


def make_private_directory(directory: str | Path) -> list[Path]:
    """Make a directory, and those above it that are missing, with mode 0700; one that is there stays as it is.

    Return the directories that were made, the uppermost first. Raises OSError.
    """
    path, made = Path(directory), list[Path]()
    try:
        os.mkdir(path, _DIRECTORY_MODE)
        made.append(path)
    except FileNotFoundError:
        if path.parent == path:
            raise
        made = [*make_private_directory(path.parent), *make_private_directory(path)]
    except OSError:
        if not path.is_dir():
            raise
    return made


def temporary_top() -> str:
    """Return the directory for temporary files. Raises RuntimeUnavailableError if this user can write none."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise RuntimeUnavailableError(
            f"there is no directory for temporary files ({error.strerror}): let the environment variable TMPDIR (of "
            "Spark's workers: spark.executorEnv.TMPDIR) name one that this user may write, such as a mounted volume"
        ) from error


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=private_opener)`: if it is made, with mode 0600."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def write_private_text(path: str | Path, text: str) -> None:
    """Write a text file, with mode 0600 if it is made."""
    with open(path, "w", opener=private_opener) as file:
        file.write(text)
