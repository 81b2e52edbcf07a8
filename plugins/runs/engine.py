"""Keeps the documented import path of `Engine`, which is in engine/run/."""

from penstock.plugins.engine.run.engine import Engine

__all__ = ["Engine"]
