"""The Spark runtime: one query runs an application, a Spark task each of its tasks; imports core and runtime."""

from __future__ import annotations

from .progress import RunProgress, RunSummary
from .runner import run

__all__ = ["RunProgress", "RunSummary", "run"]
