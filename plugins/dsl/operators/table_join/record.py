"""How joins of a stream with a table and with a global table are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.clock import Duration, duration_ms
from penstock.errors import TopologyError

from ...graph.flow import Flow
from ...graph.functions import check_mapper
from ...graph.recorder import Recorder
from ...graph.serdes import KnownSerde, Serdes, check_same_keys
from ...graph.step import ProcessorStep, Stores
from ...graph.writer import Writer
from ..stream_join.record import JoinKind
from ..stream_join.steps import Joiner
from ..stream_join.stores import TableJoinOptions, delayed_store
from .delayed import StreamTableDelayedJoin
from .global_table import StreamGlobalTableJoin
from .stream_table import StreamTableJoin

if TYPE_CHECKING:
    from ...global_table import GlobalKTable
    from ...table_base import TableBase


def record_table_join(
    recorder: Recorder,
    kind: JoinKind,
    stream: Flow,
    table: TableBase[Any, Any],
    joiner: Joiner,
    grace: Duration | None,
    name: str | None,
    options: TableJoinOptions,
) -> Flow:
    """Add the step of a join with a table that is partitioned by the same keys; return what comes out of it."""
    verb, sources = kind.verb, stream.sources | table.flow.sources
    recorder.copartition(sources)
    node = recorder.names.step("KSTREAM-LEFTJOIN-" if kind.keeps_left else "KSTREAM-JOIN-", name)
    getter = table.source.getter()
    arguments = {"table": getter, **_arguments(kind, joiner)}
    if grace is None:
        step = TableJoinStep(verb, node, StreamTableJoin, arguments, stores=lambda writer: getter.stores)
    else:
        if getter.history_ms is None:
            raise TopologyError(
                f"{verb}: grace needs a table that keeps versions; write "
                'builder.table(TOPIC, versioned_store("NAME", history_retention="1h"))'
            )
        if _grace_ms(verb, grace) > getter.history_ms:
            raise TopologyError(
                f"{verb}: grace={grace!r} is longer than the {getter.history_ms} ms for which the table's store "
                f"{getter.stores[0]!r} keeps versions, so a record that has waited would find none; give the store a "
                "longer history_retention"
            )
        waiting = f"{node}-Buffer"
        if name is None:
            recorder.names.generated[waiting] = f'{verb}(..., name="NAME")'
        declare = delayed_store(waiting, stream.serdes, options)
        arguments |= {"waiting": waiting, "grace_ms": _grace_ms(verb, grace)}
        step = TableJoinStep(
            verb, node, StreamTableDelayedJoin, arguments, stores=lambda writer: (declare(writer), *getter.stores)
        )
    step.keys = (stream.serdes.key, table.flow.serdes.key)
    recorder.add(step, stream.step)
    return Flow(step, Serdes(stream.serdes.key), sources)


def record_global_table_join(
    recorder: Recorder,
    kind: JoinKind,
    stream: Flow,
    table: GlobalKTable[Any, Any],
    joiner: Joiner,
    select_key: Callable[..., Any] | None,
    name: str | None,
) -> Flow:
    """Add the step of a join with a global table, and return what comes out of it."""
    if select_key is not None:
        check_mapper(kind.verb, select_key, with_key=joiner.with_key, what="select_key")
    arguments = {"store": table.store, "select_key": select_key, **_arguments(kind, joiner)}
    # Kafka Streams gives both kinds of this join the same prefix.
    node = recorder.names.step("KSTREAM-LEFTJOIN-", name)
    step = TableJoinStep(kind.verb, node, StreamGlobalTableJoin, arguments, needs_no_repartition=True)
    recorder.add(step, stream.step)
    return Flow(step, Serdes(stream.serdes.key), stream.sources, stream.needs_repartition)


def _arguments(kind: JoinKind, joiner: Joiner) -> dict[str, Any]:
    return {"joiner": joiner.function, "with_key": joiner.with_key, "keeps_unmatched": kind.keeps_left}


def _grace_ms(verb: str, grace: Duration) -> int:
    found = duration_ms(grace, f"{verb}: grace")
    if found < 0:
        raise TopologyError(f"{verb}: grace={grace!r}: expected 0s or longer")
    return found


class TableJoinStep(ProcessorStep):
    """Writes the processor that looks a stream's records up in a table. `keys` are the serdes of both sides' keys.

    A join by key changes values, but only behind the repartition topic that it needs itself, so nothing is gained by
    saying so. One that `needs_no_repartition`, with a global table, says so: else a topic for its results would be put
    before it, with the wrong serde (Kafka Streams does that).
    """

    def __init__(
        self,
        verb: str,
        name: str,
        supplier: Any,
        options: dict[str, Any],
        *,
        stores: Stores | None = None,
        needs_no_repartition: bool = False,
    ) -> None:
        super().__init__(name, supplier, options, stores=stores, changes_value=needs_no_repartition)
        self.verb = verb
        self.keys: tuple[KnownSerde, KnownSerde] = (None, None)
        self.takes_null_keys = bool(options["keeps_unmatched"])

    def write(self, writer: Writer) -> None:
        check_same_keys(self.verb, *self.keys, writer.settings)
        super().write(writer)
