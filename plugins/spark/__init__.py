"""The Spark runtime: one query runs an application, a Spark task each of its tasks; imports core and runtime."""

from __future__ import annotations

from .dataframe import Records, transform
from .progress import RunProgress, RunSummary
from .runner import run

__all__ = ["Records", "RunProgress", "RunSummary", "run", "transform"]
