"""The streams DSL: verbs on streams and tables, which build a plain Topology. It may import core and store kinds."""

from .builder import StreamsBuilder
from .join_windows import JoinWindows, within
from .several import Column, collect_of, count_of, first_of, last_of, max_of, mean_of, min_of, sum_of
from .streams.cogrouped import CogroupedKStream, WindowedCogroupedKStream
from .streams.grouped import KGroupedStream
from .streams.kstream import KStream
from .streams.windowed import SessionWindowedKStream, TimeWindowedKStream
from .tables.global_table import GlobalKTable
from .tables.ktable import KTable
from .windowed_serdes import SessionWindowedSerde, TimeWindowedSerde
from .windows import SessionWindows, SlidingWindows, TimeWindows, hopping, sessions, sliding, tumbling, unlimited

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
