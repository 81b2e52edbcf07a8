"""Change events as Debezium writes them: a serde, and tables of their rows; imports the public door only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock import hookimpl
from penstock.support.packages import lazy_names

if TYPE_CHECKING:
    from .change import Change, latest
    from .serde import DebeziumSerde
    from .tables import table

__all__ = ["Change", "DebeziumSerde", "latest", "table"]

__getattr__ = lazy_names(
    __name__, {"Change": "change", "DebeziumSerde": "serde", "latest": "change", "table": "tables"}
)


@hookimpl
def penstock_serdes() -> Mapping[str, str]:
    """Name the serde."""
    return {"contrib.debezium": "penstock.contrib.debezium.serde:DebeziumSerde"}
