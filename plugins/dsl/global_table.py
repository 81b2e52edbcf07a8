"""GlobalKTable: a table that every task has whole."""

from __future__ import annotations

from typing import Generic

from .graph.recorder import Recorder
from .graph.serdes import Serdes
from .missing_verbs import Verbs
from .stream_base import K, V


class GlobalKTable(Verbs, Generic[K, V]):
    """All partitions of a topic as one table, which every task can read; `StreamsBuilder.global_table` makes it.

    Streams are joined with it by any key, and their partitions do not matter: `stream.join(table, joiner,
    select_key=...)`. `store` is the name of its store. Semantics: Kafka Streams' GlobalKTable.
    """

    kind = "global table"

    def __init__(self, recorder: Recorder, store: str, serdes: Serdes) -> None:
        self.recorder = recorder
        self.store = store
        self.serdes = serdes
