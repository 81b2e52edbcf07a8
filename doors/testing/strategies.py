"""Hypothesis strategies for tests of stream programs and serdes: records, streams of them, and values of every type."""

from penstock.plugins.testing.strategies import records, streams
from penstock.plugins.testing.values import keys, values

__all__ = ["keys", "records", "streams", "values"]
