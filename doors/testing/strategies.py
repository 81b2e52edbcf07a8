"""Hypothesis strategies for tests of stream programs and serdes: records, streams of them, and values of every type."""

from penstock.plugins.testing.strategies import keys, records, streams, values

__all__ = ["keys", "records", "streams", "values"]
