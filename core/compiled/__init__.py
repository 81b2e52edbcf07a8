"""Compiled parts: functions in C that replace Python functions of the engine, to save time.

Each is optional. Python stays the specification: a compiled function gets the Python function that it stands for, and
hands it every call that is not the common case, before it has changed anything. `pip install` builds them where there
is a C compiler with Python's headers. PENSTOCK_COMPILED=0 switches them off.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import Any

_log = logging.getLogger("penstock.compiled")

VARIABLE = "PENSTOCK_COMPILED"
REVISION = 2
"""The version of the interface between Python and C. Raise it here and in the C sources when that interface changes."""

_parts: dict[str, str] = {}


def load(module: str, part: str) -> Any:
    """Return a compiled module by its full name; None if it is switched off, not built, or of another revision.

    `part` describes it, for `status`.
    """
    if os.environ.get(VARIABLE) == "0":
        _parts[part] = f"off ({VARIABLE}=0)"
        return None
    try:
        loaded = import_module(module)
    except ImportError as error:
        is_there = not isinstance(error, ModuleNotFoundError)
        _parts[part] = (
            f"cannot be loaded: {error}" if is_there else "not built: pip needs a C compiler and Python's headers"
        )
        return None
    if (found := getattr(loaded, "REVISION", None)) != REVISION:
        _parts[part] = f"of revision {found}, expected {REVISION}: install penstock again"
        _log.warning("the compiled %s are %s", part, _parts[part])
        return None
    _parts[part] = "compiled"
    return loaded


def fall_back(part: str, reason: str) -> None:
    """Record that a part that was loaded is not used, and why."""
    _parts[part] = f"not used: {reason}"


def status() -> dict[str, str]:
    """Return for each part that was loaded so far "compiled", or why it is not.

    >>> status()["records"] in ("compiled", "off (PENSTOCK_COMPILED=0)") or "pip" in status()["records"]
    True
    """
    return dict(_parts)


records: Any = load("penstock.compiled._records", "records")
"""The record path: the loop over records, `forward`, single entries of stores, writes of sinks; None: in Python."""
