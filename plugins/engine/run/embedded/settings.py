"""The setting that only the embedded engine reads."""

from __future__ import annotations

from penstock import Setting
from penstock.settings.types import whole_number

PROCESSES = Setting(
    "processes",
    whole_number(0, expected="a number of processes, or 0 for none beside the engine's own"),
    0,
    "With the engine `embedded`: in how many task hosts the tasks run; 0: in the process of the engine.",
)
