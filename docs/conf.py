"""Sphinx's settings; `make docs` builds with warnings as errors."""

from importlib.metadata import version as installed_version

project = "penstock"
author = "the penstock developers"
copyright = "the penstock developers"
release = version = installed_version("penstock-streams")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = False

html_theme = "furo"
html_title = f"penstock {release}"

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
