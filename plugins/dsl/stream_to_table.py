"""The verb that makes a table of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from .graph.flow import Flow
from .graph.materialized import StoreLike, StoreOptions, materialized
from .graph.serdes import Serdes
from .graph.step import ProcessorStep
from .operators.reading import TopicTable
from .operators.table_source import TableUpdates
from .stream_base import K, V
from .stream_output import Output

if TYPE_CHECKING:
    from .table import KTable


class ToTable(Output[K, V]):
    """Tables of streams."""

    def to_table(
        self, store: StoreLike | None = None, *, name: str | None = None, **options: Unpack[StoreOptions]
    ) -> KTable[K, V]:
        """Return the table of the latest value of each key; a record without a value deletes its key.

        Records without a key are dropped. If a verb before may have changed keys, records go through a repartition
        topic, `NAME-repartition`. `store` is the name of the table's store, or a declared store; without it, the table
        gets a store only if a verb needs one. Semantics: Kafka Streams' KStream.toTable.
        """
        names = self.recorder.names
        step = ProcessorStep(names.step("KSTREAM-TOTABLE-", name), TableUpdates, {"store": None, "sends_old": False})
        kept = materialized("to_table", names, store, options, "KSTREAM-TOTABLE-")
        serdes = kept.serdes(self.flow.serdes)
        flow = self.flow
        if flow.needs_repartition:
            flow = self._repartitioned(step.name, serdes, how='to_table(name="NAME")').flow
            serdes = Serdes(flow.serdes.key, serdes.value)
        self.recorder.add(step, flow.step)
        made: KTable[K, V] = self.recorder.kinds.table(
            self.recorder,
            Flow(step, serdes, flow.sources),
            TopicTable(step, kept, serdes),
            kept.own_name,
        )
        return made
