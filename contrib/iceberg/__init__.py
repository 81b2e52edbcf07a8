"""A sink to Apache Iceberg: each record once, in a snapshot of a table; imports the public door only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock import hookimpl
from penstock.support.packages import lazy_names

if TYPE_CHECKING:
    from .sink import IcebergSink as iceberg

__all__ = ["iceberg"]

__getattr__ = lazy_names(__name__, {"iceberg": "sink:IcebergSink"})


@hookimpl
def penstock_sinks() -> Mapping[str, str]:
    """Name the sink."""
    return {"contrib.iceberg": "penstock.contrib.iceberg.sink:IcebergSink"}
