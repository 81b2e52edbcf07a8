"""The keyword arguments of a DSL program's sources, for the signatures that type checkers see."""

from __future__ import annotations

import re
from typing import TypedDict

from penstock.clock import Duration
from penstock.extractors import TimestampExtractor

from .graph.materialized import TableOptions


class SourceOptions(TypedDict, total=False):
    """Those of `StreamsBuilder.stream`, without serdes."""

    pattern: str | re.Pattern[str] | None
    timestamp_extractor: TimestampExtractor | None
    offset_reset: Duration | None
    name: str | None


class TableSourceOptions(TableOptions, total=False):
    """Those of `StreamsBuilder.table`, without serdes."""

    timestamp_extractor: TimestampExtractor | None
    offset_reset: Duration | None
    name: str | None


class GlobalTableOptions(TypedDict, total=False):
    """Those of `StreamsBuilder.global_table`, without serdes."""

    timestamp_extractor: TimestampExtractor | None
    name: str | None
    backend: str | None
