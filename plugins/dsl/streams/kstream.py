"""KStream: a stream of records, and all that can be done with it."""

from __future__ import annotations

from .base import K, V
from .grouping import Grouping
from .joining import Joining
from .showing import Showing
from .stateless import Stateless
from .to_table import ToTable


class KStream(Stateless[K, V], Grouping[K, V], Joining[K, V], ToTable[K, V], Showing[K, V]):
    """A stream of records: each stands for itself, unlike those of a KTable, which replace earlier ones of their key.

    `StreamsBuilder.stream` makes the first one, and every verb another. Semantics: Kafka Streams' KStream.
    """
