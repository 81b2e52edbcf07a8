"""The Spark runtime: one streaming query runs an application; each of Spark's tasks runs one or more of its tasks."""

from __future__ import annotations

from .dataframe import Records, transform
from .progress import RunProgress, RunSummary
from .runner import run

__all__ = ["Records", "RunProgress", "RunSummary", "run", "transform"]
