"""The mark that says whether files which nobody fsyncs can be believed after a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_CLEAN = "clean"
_UNKNOWN = "unknown"


class TrustMark:
    """A file in the directory: the word "clean" after a clean close, otherwise the id of the boot under which it was written.

    What was written under this boot is in the system's cache at least, so that a process that is killed harms nothing.
    A system without boot ids can tell only a clean close from all else.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.path = os.path.join(directory, "trust")
        self._boot = _boot_id()

    def vouches(self) -> bool:
        """Return whether the files are as they were left."""
        return self._read() in (_CLEAN, self._boot)

    def accuses(self) -> bool:
        """Return whether the files are known to have been left by another boot."""
        return self._boot is not None and not self.vouches()

    def set_clean(self) -> None:
        """Note that everything is on disk."""
        self._write(_CLEAN)

    def set_in_use(self) -> None:
        """Note, durably and before it happens, that a crash of the machine does harm from now on."""
        boot = self._boot or _UNKNOWN
        if self._read() != boot:
            self._write(boot)

    def _read(self) -> str:
        try:
            with open(self.path) as file:
                return file.read().strip()
        except FileNotFoundError:
            return "none"

    def _write(self, text: str) -> None:
        aside = f"{self.path}.{os.getpid()}"
        with open(aside, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.path)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _boot_id() -> str | None:
    """Return what identifies this boot of the machine, or None where there is no such thing."""
    try:
        return Path(_BOOT_ID).read_text().strip() or None
    except OSError:
        return None
