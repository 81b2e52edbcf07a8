"""Joins of two tables by a foreign key."""
