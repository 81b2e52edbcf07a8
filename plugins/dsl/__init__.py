"""The streams DSL: verbs on streams and tables, which build a plain Topology. It may import core and store kinds."""

from typing import Any

from .base import GlobalKTable
from .builder import StreamsBuilder
from .cogrouped import CogroupedKStream, WindowedCogroupedKStream
from .graph.serdes import SessionWindowedSerde, TimeWindowedSerde
from .grouped import KGroupedStream
from .missing_verbs import name_of_kafka
from .operators.aggregate.calendar_windows import calendar_windows
from .operators.aggregate.columns import (
    Column,
    collect_of,
    collect_set,
    count_distinct,
    count_of,
    first_of,
    histogram,
    last_of,
    latest,
    max_by,
    max_of,
    mean_of,
    min_by,
    min_of,
    sum_of,
    top,
)
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
from .stream_state import ConnectedKStreams
from .table import KTable
from .windowed import SessionWindowedKStream, TimeWindowedKStream

__all__ = [
    "CogroupedKStream",
    "Column",
    "ConnectedKStreams",
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
    "collect_set",
    "count_distinct",
    "count_of",
    "first_of",
    "histogram",
    "hopping",
    "last_of",
    "latest",
    "max_by",
    "max_of",
    "mean_of",
    "min_by",
    "min_of",
    "sessions",
    "sliding",
    "sum_of",
    "top",
    "tumbling",
    "unlimited",
    "within",
]


def __getattr__(name: str) -> Any:
    return name_of_kafka(__name__, name)
