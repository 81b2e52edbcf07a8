"""TableBase, of which a KTable is made (the verbs are mixins over it), and GlobalKTable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from penstock import Program, Settings, Topology
from penstock.program.drawn import Drawn

from .graph.recorder import Recorder
from .graph.serdes import Serdes
from .graph.step import Flow
from .missing_verbs import Verbs
from .operators.reading import TableSource
from .operators.stateless.table_values import ToStream
from .stream_base import K, V

if TYPE_CHECKING:
    from .table import KTable


class TableBase(Verbs, Drawn, Generic[K, V]):
    """A table under construction. A notebook shows the program that it belongs to.

    `store` is the name of its store, if the user chose one.
    """

    kind = "table"

    def __init__(self, recorder: Recorder, flow: Flow, source: TableSource, store: str | None) -> None:
        self.recorder = recorder
        self.flow = flow
        self.source = source
        self.store = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.flow.step.name}{_stored(self.store)}>"

    def _program_to_draw(self) -> Program:
        return self.recorder.program_to_draw()

    def _tapped(self, settings: Settings) -> tuple[Topology, str]:
        """Return the topology of the program so far, and a node that forwards the updates of this table as records."""
        topology, node = self.recorder.tapped(settings, self.flow.step)
        return topology.add_processor("to-pandas-updates", ToStream, node), "to-pandas-updates"

    if not TYPE_CHECKING:

        def __getitem__(self, key: Any) -> Any:
            # Without it, Python says that a table is not subscriptable.
            raise TypeError(
                "a table under construction has no rows: a processor reads its store with context.get_store(NAME), "
                "where the table has a store of that name, and a test with driver.store(NAME)"
            )

    def _table_of(self, flow: Flow, source: TableSource, store: str | None) -> KTable[Any, Any]:
        made: KTable[Any, Any] = self.recorder.kinds.table(self.recorder, flow, source, store)
        return made


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

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{_stored(self.store)}>"


def _stored(store: str | None) -> str:
    return "" if store is None else f", store {store!r}"
