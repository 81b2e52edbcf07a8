"""Joins of a stream with a table, and of two tables by key."""
