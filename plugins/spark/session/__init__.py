"""Spark's session, JVM and interpreter: made, checked and started for penstock."""

from __future__ import annotations

from .sessions import make_session

__all__ = ["make_session"]
