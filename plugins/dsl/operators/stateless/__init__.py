"""Verbs that look at one record, or at one row of a table, at a time."""
