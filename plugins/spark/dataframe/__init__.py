"""DataFrame in, DataFrame out: a topology as a stateful operator of a Spark pipeline, with Spark's commits."""

from __future__ import annotations

from .records import Records
from .transform import apply_topology, topic_rows, transform

__all__ = ["Records", "apply_topology", "topic_rows", "transform"]
