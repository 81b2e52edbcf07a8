"""Hypothesis strategies for tests of stream programs. They are those of `penstock.plugins.testing.strategies`."""

from penstock.plugins.testing.strategies import records, streams

__all__ = ["records", "streams"]
