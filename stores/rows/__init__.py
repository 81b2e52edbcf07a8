"""Rows of stores as bytes: forms of keys and values, escaped and timed keys, and when rows expire."""
