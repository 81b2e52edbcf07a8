"""What the verbs of streams and of tables have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock import Program, Settings, Topology
from penstock.program.drawn import Drawn

from .graph.recorder import Recorder
from .graph.serdes import Serdes
from .graph.step import Flow, ProcessorStep, Step
from .missing_verbs import Verbs
from .operators.derived_table import ToStream
from .operators.reading import TableSource

if TYPE_CHECKING:
    from .stream import KStream
    from .table import KTable


K = TypeVar("K")
V = TypeVar("V")


class StreamBase(Verbs, Drawn, Generic[K, V]):
    """A stream of records under construction. A notebook shows the program that it belongs to."""

    kind = "stream"

    def __init__(self, recorder: Recorder, flow: Flow) -> None:
        self.recorder = recorder
        self.flow = flow

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.flow.step.name}>"

    def _program_to_draw(self) -> Program:
        return self.recorder.program_to_draw()

    def _tapped(self, settings: Settings) -> tuple[Topology, str]:
        """Return the topology of the program so far, and the node that forwards the records of this stream."""
        return self.recorder.tapped(settings, self.flow.step)

    if not TYPE_CHECKING:

        def __getitem__(self, name: Any) -> Any:
            # Without it, Python says that a stream is not subscriptable; a loop over one comes here as well.
            raise TypeError(
                "a stream under construction has no records: write "
                'map_values(lambda value: value["price"]) for a field, filter(PREDICATE) for some records, '
                "foreach(FUNCTION) for each of them"
            )

        def __setitem__(self, name: Any, value: Any) -> None:
            raise TypeError(
                "a stream under construction has no records: for another field write "
                f"stream = stream.map_values(lambda value: {{**value, {name!r}: ...}})"
            )

    def _stream_of(self, flow: Flow) -> KStream[Any, Any]:
        made: KStream[Any, Any] = self.recorder.kinds.stream(self.recorder, flow)
        return made

    def _stream(self, step: Step, serdes: Serdes) -> KStream[Any, Any]:
        """Return the stream of the records that `step` makes of this one; adds the step."""
        needs = self.flow.needs_repartition or step.changes_key
        return self._stream_of(Flow(self.recorder.add(step, self.flow.step), serdes, self.flow.sources, needs))

    def _processed(
        self,
        prefix: str,
        name: str | None,
        supplier: Callable[..., Any],
        options: dict[str, Any],
        serdes: Serdes,
        **changes: Any,
    ) -> KStream[Any, Any]:
        """Return the stream that one more processor makes of this one; `changes`: see Step."""
        step = ProcessorStep(self.recorder.names.step(prefix, name), supplier, options, **changes)
        return self._stream(step, serdes)


class TableBase(Verbs, Drawn, Generic[K, V]):
    """A table under construction, which a notebook shows as its program. `store`: its name if the user chose one."""

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
