"""The streams DSL: verbs on streams and tables, which build a plain Topology. It may import core and store kinds."""

from .builder import StreamsBuilder
from .streams.kstream import KStream
from .tables.ktable import KTable
from .windowed_serdes import SessionWindowedSerde, TimeWindowedSerde

__all__ = ["KStream", "KTable", "SessionWindowedSerde", "StreamsBuilder", "TimeWindowedSerde"]
