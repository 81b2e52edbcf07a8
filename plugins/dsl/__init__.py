"""The streams DSL: verbs on streams and tables, which build a plain Topology. It may import core and store kinds."""

from .builder import StreamsBuilder
from .join_windows import JoinWindows, within
from .streams.grouped import KGroupedStream
from .streams.kstream import KStream
from .tables.ktable import KTable
from .windowed_serdes import SessionWindowedSerde, TimeWindowedSerde

__all__ = [
    "JoinWindows",
    "KGroupedStream",
    "KStream",
    "KTable",
    "SessionWindowedSerde",
    "StreamsBuilder",
    "TimeWindowedSerde",
    "within",
]
