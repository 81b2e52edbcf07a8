"""How joins of a stream with a table and with a global table are recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypedDict

from penstock import Duration, StoreBuilder, TopologyError, duration_ms, list_store
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.store.division import Division
from penstock.support.topic_config import TopicConfig

from ...graph.functions import check_mapper
from ...graph.materialized import kept_options
from ...graph.recorder import Recorder
from ...graph.serdes import Serdes, check_same_keys, key_of_store, value_of_store
from ...graph.step import Flow, ProcessorStep, Stores
from ...graph.writer import Writer
from ..joins import Joiner, JoinKind, TableSide
from ..reading import StoreGetter
from ..waiting import TimedKeySerde, ValueAndHeadersSerde
from .stream_table import StreamTableDelayedJoin, StreamTableJoin


class TableJoinOptions(TypedDict, total=False):
    """The keyword arguments of a join of a stream with a table.

    `key_serde`, `value_serde`: serdes of the stream's keys and values in a repartition topic and in the store of
    records that wait, where they are not known. `backend`, `logged`, `topic_config`: of that store, which there
    is with `grace`.
    """

    key_serde: SerdeLike
    value_serde: SerdeLike
    backend: str | None
    logged: bool
    topic_config: TopicConfig


def record_table_join(
    recorder: Recorder,
    kind: JoinKind,
    stream: Flow,
    table: TableSide,
    joiner: Joiner,
    grace: Duration | None,
    name: str | None,
    options: TableJoinOptions,
) -> Flow:
    """Add the step of a join with a table that is partitioned by the same keys; return what comes out of it."""
    verb, sources = kind.verb, stream.sources | table.flow.sources
    recorder.copartition(sources)
    node = recorder.names.step("KSTREAM-LEFTJOIN-" if kind.keeps_left else "KSTREAM-JOIN-", name)
    getter, keys = table.source.getter(), (stream.serdes.key, table.flow.serdes.key)
    arguments = {"table": getter, **_arguments(kind, joiner)}
    supplier: type[StreamTableJoin] = StreamTableJoin
    waiting: Stores | None = None
    if grace is not None:
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
        buffer = f"{node}-Buffer"
        if name is None:
            recorder.names.generated[buffer] = f'{verb}(..., name="NAME")'
        arguments |= {"waiting": buffer, "grace_ms": _grace_ms(verb, grace)}
        supplier, waiting = StreamTableDelayedJoin, delayed_store(buffer, stream.serdes, options)

    def stores(writer: Writer) -> tuple[str | StoreBuilder, ...]:
        check_same_keys(verb, *keys, writer.settings)
        return (*(() if waiting is None else waiting(writer)), *getter.stores)

    # A join by key changes values, but only behind the repartition topic that it needs itself: nothing to say.
    step = ProcessorStep(node, supplier, arguments, stores=stores)
    step.takes_null_keys = kind.keeps_left
    recorder.add(step, stream.step)
    return Flow(step, Serdes(stream.serdes.key), sources)


def record_global_table_join(
    recorder: Recorder,
    kind: JoinKind,
    stream: Flow,
    table: str,
    joiner: Joiner,
    select_key: Callable[..., Any] | None,
    name: str | None,
) -> Flow:
    """Add the step of a join with a global table, whose store is `table`; return what comes out of it."""
    if select_key is not None:
        check_mapper(kind.verb, select_key, with_key=joiner.with_key, what="select_key")
    arguments = {"table": StoreGetter(table), "select_key": select_key, **_arguments(kind, joiner)}
    # Kafka Streams gives both kinds of this join the same prefix.
    node = recorder.names.step("KSTREAM-LEFTJOIN-", name)
    # Else a topic for its results would be put before it, with the wrong serde: Kafka Streams does that.
    step = ProcessorStep(node, StreamTableJoin, arguments, changes_value=True)
    step.takes_null_keys = kind.keeps_left
    recorder.add(step, stream.step)
    return Flow(step, Serdes(stream.serdes.key), stream.sources, stream.needs_repartition)


def _arguments(kind: JoinKind, joiner: Joiner) -> dict[str, Any]:
    return {"joiner": joiner.function, "with_key": joiner.with_key, "keeps_unmatched": kind.keeps_left}


def _grace_ms(verb: str, grace: Duration) -> int:
    found = duration_ms(grace, f"{verb}: grace", may_be_negative=True)
    if found < 0:
        raise TopologyError(f"{verb}: grace={grace!r}: expected 0s or longer")
    return found


def delayed_store(name: str, serdes: Serdes, options: TableJoinOptions) -> Stores:
    """Return a function that declares the store of records that wait for late updates of a table, by time."""

    def declared(writer: Writer) -> tuple[StoreBuilder]:
        state, what = writer.settings.state_serde, f"store {name!r}"
        key, value = key_of_store(serdes.key, writer.settings), value_of_store(serdes.value, writer.settings)
        made = list_store(
            name,
            key_serde=TimedKeySerde(resolve_serde(key, state, what)),
            value_serde=ValueAndHeadersSerde(resolve_serde(value, state, what)),
            **kept_options(options),
        )
        return (replace(made, division=Division(record_key=itemgetter(1))),)

    return declared
