"""The logical graph of the DSL."""
