"""Writes the page of the documentation that shows the upgrade matrix: `python -m tests.upgrades`."""

from __future__ import annotations

from tests.processes import ROOT

from .page import PAGE, page

if __name__ == "__main__":
    (ROOT / PAGE).write_text(page())
