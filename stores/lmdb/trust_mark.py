"""A mark beside files that are not fsynced: whether they are intact after a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.support.private_files import private_opener

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_CLEAN = "clean"
_UNKNOWN = "unknown"
_NOT_SYNCED = "not synced"


class TrustMark:
    """A file in the directory: "clean" after a clean close, otherwise the id of the boot of its last write.

    Where the disk refused a sync, it has "not synced", or is not there.

    Writes under this boot are in the system's page cache at least, so a killed process does no harm. A system without
    boot ids only distinguishes a clean close from everything else.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.path = os.path.join(directory, "trust")
        self._boot = _boot_id()

    def is_trusted(self) -> bool:
        """Return whether the files are as they were written."""
        return self._read() in (_CLEAN, self._boot)

    def is_stale(self) -> bool:
        """Return whether the files were last written under another boot, without a clean close."""
        return self._boot is not None and not self.is_trusted()

    def set_clean(self) -> None:
        """Record that everything is on disk."""
        self._write(_CLEAN)

    def set_not_synced(self) -> None:
        """Record that the disk has refused a part of the files: what a process reads from now on may be older."""
        try:
            self._write(_NOT_SYNCED)
        except OSError:
            os.unlink(self.path)  # which says the same

    def set_in_use(self) -> None:
        """Record durably, before the first write, that a crash of the machine may damage the files."""
        boot = self._boot or _UNKNOWN
        if self._read() != boot:
            self._write(boot)

    def delete(self) -> None:
        """Delete the file, and what killed processes have left beside it."""
        for file in Path(self._directory).glob("trust*"):
            file.unlink(missing_ok=True)

    def _read(self) -> str:
        try:
            with open(self.path, encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except FileNotFoundError:
            return "none"

    def _write(self, text: str) -> None:
        aside = f"{self.path}.{os.getpid()}"
        with open(aside, "w", opener=private_opener) as file:
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
    """Return the id of this boot of the machine; None where the system has none."""
    try:
        return Path(_BOOT_ID).read_text().strip() or None
    except OSError:
        return None
