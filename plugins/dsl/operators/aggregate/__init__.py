"""Aggregations of each key, and of the groups of a table's rows."""
