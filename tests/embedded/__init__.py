"""Tests of the embedded engine; none starts Spark."""
