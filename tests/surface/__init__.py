"""Tests of what is built on the commit path: values and readers through every door."""
