"""KStream: a stream of records, and all that can be done with it."""

from __future__ import annotations

from .stream_base import K, V
from .stream_grouping import Grouping
from .stream_joins import Joining
from .stream_showing import Showing
from .stream_stateless import Stateless
from .stream_to_table import ToTable


class KStream(Stateless[K, V], Grouping[K, V], Joining[K, V], ToTable[K, V], Showing[K, V]):
    """A stream of records: each stands for itself, unlike those of a KTable, which replace earlier ones of their key.

    `StreamsBuilder.stream` makes the first one, and every verb another. Semantics: Kafka Streams' KStream.
    """
