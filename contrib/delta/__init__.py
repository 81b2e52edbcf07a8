"""A sink to Delta Lake: each record once in a table, by one commit with its position; imports the public door only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock import hookimpl
from penstock.support.packages import lazy_names

if TYPE_CHECKING:
    from .position import set_position
    from .sink import DeltaSink as delta

__all__ = ["delta", "set_position"]

__getattr__ = lazy_names(__name__, {"delta": "sink:DeltaSink", "set_position": "position"})


@hookimpl
def penstock_sinks() -> Mapping[str, str]:
    """Name the sink."""
    return {"contrib.delta": "penstock.contrib.delta.sink:DeltaSink"}
