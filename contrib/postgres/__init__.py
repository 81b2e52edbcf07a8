"""A sink to PostgreSQL: each record once in a table; imports the public door only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock import hookimpl
from penstock.support.packages import lazy_names

if TYPE_CHECKING:
    from .sink import PostgresSink as postgres

__all__ = ["postgres"]

__getattr__ = lazy_names(__name__, {"postgres": "sink:PostgresSink"})


@hookimpl
def penstock_sinks() -> Mapping[str, str]:
    """Name the sink."""
    return {"contrib.postgres": "penstock.contrib.postgres.sink:PostgresSink"}
