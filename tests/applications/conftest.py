"""Fixtures of the tests of an application on its log."""

from __future__ import annotations

from ..bad_input.conftest import a_file_each, make_world, world

__all__ = ["a_file_each", "make_world", "world"]
