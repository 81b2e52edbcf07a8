"""The streams DSL: verbs on streams and tables, which build a plain Topology. It may import core and store kinds."""

from typing import Any

from .base import GlobalKTable
from .builder import StreamsBuilder
from .cogrouped import CogroupedKStream, WindowedCogroupedKStream
from .graph.serdes import SessionWindowedSerde, TimeWindowedSerde
from .grouped import KGroupedStream
from .missing_verbs import name_of_kafka
from .operators.aggregate.calendar_windows import calendar_windows
from .operators.aggregate.folds import Column, collect_of, count_of, first_of, last_of, max_of, mean_of, min_of, sum_of
from .operators.aggregate.windows import (
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    hopping,
    sessions,
    sliding,
    tumbling,
    unlimited,
)
from .operators.join_windows import JoinWindows, within
from .stream import KStream
from .table import KTable
from .windowed import SessionWindowedKStream, TimeWindowedKStream

__all__ = [
    "CogroupedKStream",
    "Column",
    "GlobalKTable",
    "JoinWindows",
    "KGroupedStream",
    "KStream",
    "KTable",
    "SessionWindowedKStream",
    "SessionWindowedSerde",
    "SessionWindows",
    "SlidingWindows",
    "StreamsBuilder",
    "TimeWindowedKStream",
    "TimeWindowedSerde",
    "TimeWindows",
    "WindowedCogroupedKStream",
    "calendar_windows",
    "collect_of",
    "count_of",
    "first_of",
    "hopping",
    "last_of",
    "max_of",
    "mean_of",
    "min_of",
    "sessions",
    "sliding",
    "sum_of",
    "tumbling",
    "unlimited",
    "within",
]


def __getattr__(name: str) -> Any:
    return name_of_kafka(__name__, name)
