"""Aggregations of each key and window."""
