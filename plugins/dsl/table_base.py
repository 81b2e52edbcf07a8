"""TableBase, of which a KTable is made (the verbs are mixins over it), and GlobalKTable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic

from penstock.errors import TopologyError
from penstock.program.drawn import Drawn
from penstock.program.program import Program

from .graph.functions import check_options
from .graph.materialized import Materialized, StoreLike, StoreOptions, materialized
from .graph.recorder import Recorder
from .graph.serdes import Serdes
from .graph.step import Flow, ProcessorStep
from .missing_verbs import Verbs
from .operators.reading import TableSource
from .stream_base import K, V


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

    def _program_to_draw(self) -> Program:
        return self.recorder.program_to_draw()

    if not TYPE_CHECKING:

        def __getitem__(self, key: Any) -> Any:
            # Without it, Python says that a table is not subscriptable.
            raise TypeError(
                "a table under construction has no rows: a processor reads its store with context.get_store(NAME), "
                "where the table has a store of that name, and a test with driver.store(NAME)"
            )

    def _kept(self, verb: str, store: StoreLike | None, options: Mapping[str, Any], prefix: str) -> Materialized | None:
        """Return the store of a verb whose table needs none; None if the user asks for none."""
        if store is not None:
            return materialized(verb, self.recorder.names, store, options, prefix)
        check_options(verb, options, StoreOptions.__annotations__)
        of_stores = sorted(set(options) - {"key_serde", "value_serde"})
        if of_stores:
            raise TopologyError(
                f'{verb}: {", ".join(of_stores)} belongs to a store, and {verb} has none here; write store="NAME"'
            )
        if options:
            # Kafka Streams uses up a number where only serdes are given.
            self.recorder.names.step(prefix)
        return None

    def _table(self, step: ProcessorStep, serdes: Serdes, source: TableSource, kept: Materialized | None) -> Any:
        """Return the table that `step`, which was added, makes of this one."""
        flow = Flow(step, serdes, self.flow.sources)
        return self.recorder.kinds.table(self.recorder, flow, source, None if kept is None else kept.name)


def serdes_with(kept: Materialized | None, options: Mapping[str, Any], known: Serdes) -> Serdes:
    """Return the serdes of a verb's table: its store's, else the given ones, else the known ones."""
    if kept is not None:
        return kept.serdes(known)
    return known.given(options.get("key_serde"), options.get("value_serde"))


def keep(step: ProcessorStep, kept: Materialized | None, serdes: Serdes) -> None:
    """Give a step's processor its store, if the user asks for one."""
    step.options["store"] = None if kept is None else kept.name
    if kept is not None:
        before = step.stores
        step.stores = lambda writer: (*(() if before is None else before(writer)), kept.key_value(writer, serdes))


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
