"""DataFrame in, DataFrame out: a topology as a stateful operator of a Spark pipeline, with Spark's commits."""

from __future__ import annotations

from .records import Records
from .transform import transform
from .typed.schemas import topic_rows

__all__ = ["Records", "topic_rows", "transform"]
