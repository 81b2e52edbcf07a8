"""The setting that only Spark's driver reads."""

from __future__ import annotations

from penstock import Setting
from penstock.settings.types import optional, whole_number

PARALLELISM = Setting(
    "parallelism",
    optional(whole_number()),
    None,
    "Spark partitions that tasks are spread over (None: as many as there are cores, at most one a task).",
)
