"""DataFrame in, DataFrame out: a topology as one stateful operator of a Spark pipeline, committed by Spark's checkpoint."""

from __future__ import annotations

from .records import Records
from .transform import transform

__all__ = ["Records", "transform"]
