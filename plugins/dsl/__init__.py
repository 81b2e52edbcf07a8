"""The streams DSL: verbs on streams and tables, which build a plain Topology. It may import core and store kinds."""

from .builder import StreamsBuilder
from .join_windows import JoinWindows, within
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
    "WindowedCogroupedKStream",
    "TimeWindows",
    "hopping",
    "sessions",
    "sliding",
    "tumbling",
    "unlimited",
    "within",
]
