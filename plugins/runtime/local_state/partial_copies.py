"""PartialCopies: notes that local copies lack stores of their version's layout."""

from __future__ import annotations

from pathlib import Path

from penstock.plugins.upgrade.coverage import Coverage
from penstock.support.private_files import write_private_text

from ..locations import making_state_directory


class PartialCopies:
    """A note in a task's directory, for which layout its copies were restored, where they lack stores.

    A copy that is restored to a version of an earlier layout gets the stores of the present one only, and the version's
    name says that it has all. If the process ends before the first commit of the present layout, and a program with the
    earlier layout comes back, these stores would be empty. So such a program does not use the copies.
    """

    def __init__(self, directory: Path, layout_id: str) -> None:
        self._file = directory / "partial"
        self._layout_id = layout_id
        self.are_of_another = False
        """Whether the copies lack stores because they were restored for another layout than the present one."""

    def find(self) -> None:
        """Look whether there is a note."""
        self.are_of_another = read(self._file) not in ("", self._layout_id)

    def begin(self, coverage: Coverage) -> None:
        """Note it before a copy is restored which will lack stores."""
        # The note of another layout stays until all copies are restored for the present one.
        if coverage.leaves_out and not self.are_of_another:
            self.note(coverage)

    def end(self, coverage: Coverage) -> None:
        """Note whether the copies lack stores, once all are restored."""
        self.are_of_another = False
        if not coverage.leaves_out or read(self._file):
            self.note(coverage)

    def note(self, coverage: Coverage) -> None:
        """Note whether the copies lack stores of their version's layout."""
        if coverage.leaves_out:
            write_private_text(self._file, self._layout_id)
        else:
            self._file.unlink(missing_ok=True)


def read(file: Path) -> str:
    """Return the content of a file in a task's directory, "" if it is not there."""
    with making_state_directory(file.parent):
        try:
            return file.read_text()
        except FileNotFoundError:
            return ""
