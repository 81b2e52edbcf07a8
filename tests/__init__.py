"""Tests, and the programs `python -m tests.conformance` and `python -m tests.crash`."""
