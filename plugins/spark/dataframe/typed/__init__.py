"""Typed columns: keys and values of records with Spark's types, in and out, instead of bytes."""
