"""A right command, in a module that imports pandas."""

from __future__ import annotations

import pandas as pandas

from .planted_commands import right as right
