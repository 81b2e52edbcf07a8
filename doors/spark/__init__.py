"""What programs import that run on Spark, or in a Spark pipeline. The names are those of `penstock.plugins.spark`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.plugins import spark
from penstock.plugins.spark.sessions import make_session

if TYPE_CHECKING:
    from penstock.plugins.spark import (
        Records,
        RunProgress,
        RunSummary,
        apply_topology,
        read_state,
        run,
        topic_rows,
        transform,
    )

    __all__ = [
        "Records",
        "RunProgress",
        "RunSummary",
        "apply_topology",
        "make_session",
        "read_state",
        "run",
        "topic_rows",
        "transform",
    ]

_LAZY = ("Records", "RunProgress", "RunSummary", "apply_topology", "read_state", "run", "topic_rows", "transform")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: with `from penstock.spark import run` come Spark and pandas."""
    if name == "__all__":
        return ["make_session", *spark.__all__]
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(spark, name)
