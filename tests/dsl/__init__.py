"""The streams DSL."""
