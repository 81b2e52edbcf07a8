"""Needs a library that is not there, as after a half-done installation."""

import a_library_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401
