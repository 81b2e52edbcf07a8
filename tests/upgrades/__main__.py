"""Writes the page of the documentation that shows the upgrade matrix, and the archive of saved state if there is none:
`python -m tests.upgrades`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.processes import ROOT

from . import saved
from .page import PAGE, page

if __name__ == "__main__":
    (ROOT / PAGE).write_text(page())
    if not saved.ARCHIVES[-1].exists():
        with tempfile.TemporaryDirectory() as directory:
            with saved.opened(Path(directory)) as made:
                made.make()
            saved.pack(Path(directory))
