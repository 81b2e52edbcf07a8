"""The Spark runtime: one streaming query runs an application; each of Spark's tasks runs one or more of its tasks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.support.packages import importable

if TYPE_CHECKING:
    from penstock.plugins.engine.run.progress import RunProgress, RunSummary

    from .dataframe import Records, apply_topology, topic_rows, transform
    from .runner import run
    from .state import read_state

    __all__ = [
        "Records",
        "RunProgress",
        "RunSummary",
        "apply_topology",
        "read_state",
        "run",
        "topic_rows",
        "transform",
    ]

_FROM = {
    "Records": ".dataframe",
    "RunProgress": "penstock.plugins.engine.run.progress",
    "RunSummary": "penstock.plugins.engine.run.progress",
    "apply_topology": ".dataframe",
    "read_state": ".state",
    "run": ".runner",
    "topic_rows": ".dataframe",
    "transform": ".dataframe",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: whatever reads all settings imports `settings` of this package."""
    if name == "__all__":
        return importable(__name__, _FROM)
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FROM[name], __name__), name)
