"""The Spark runtime: one streaming query runs an application; each of Spark's tasks runs one or more of its tasks."""

from __future__ import annotations

from .dataframe import Records, transform
from .runner import run
from .watching.progress import RunProgress, RunSummary

__all__ = ["Records", "RunProgress", "RunSummary", "run", "transform"]
