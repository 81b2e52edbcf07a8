"""Tests of the Spark runtime; those that start Spark share one session."""
