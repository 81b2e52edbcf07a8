"""KTable: the latest value of each key. Verbs group its rows, keep its updates back, and make a stream of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock import Duration, TopologyError
from penstock.program.serdes import SerdeLike
from penstock.support.topic_config import TopicConfig

from .graph.functions import check_mapper, keyed
from .graph.materialized import GroupingWithKey, GroupingWithoutKey, WithKey, WithoutKey
from .graph.names import checked
from .graph.serdes import Serdes
from .graph.step import Flow, ProcessorStep
from .operators.aggregate.table_aggregate import TableSelect, group_options
from .operators.stateless.table_values import ToStream
from .operators.suppress import SuppressedTable, suppress_options, suppress_step
from .stream_base import K, V
from .table_base import TableBase
from .table_joins import TableJoins
from .table_stateless import TableStateless

if TYPE_CHECKING:
    from pandas import DataFrame

    from .grouped_table import KGroupedTable
    from .stream import KStream

K2 = TypeVar("K2")

_SUPPRESS = "KTABLE-SUPPRESS-"

__all__ = ["KTable", "TableBase"]


class KTable(TableStateless[K, V], TableJoins[K, V]):
    """The latest value of each key: a record replaces the one before, and one without a value deletes it.

    Semantics: Kafka Streams' KTable.
    """

    @overload
    def to_stream(
        self, select_key: None = None, *, with_key: bool = False, name: str | None = None
    ) -> KStream[K, V]: ...
    @overload
    def to_stream(self, select_key: Callable[[V], K2], **options: Unpack[WithoutKey]) -> KStream[K2, V]: ...
    @overload
    def to_stream(self, select_key: Callable[[K, V], K2], **options: Unpack[WithKey]) -> KStream[K2, V]: ...
    def to_stream(
        self, select_key: Callable[..., Any] | None = None, *, with_key: bool = False, name: str | None = None
    ) -> Any:
        """Return the stream of the table's updates; a deletion is a record without a value.

        With `select_key`, a function of the value (or with `with_key=True` of key and value), the records get new keys.
        """
        step = ProcessorStep(self.recorder.names.step("KTABLE-TOSTREAM-", name), ToStream)
        self.recorder.add(step, self.flow.step)
        made: KStream[K, V] = self.recorder.kinds.stream(self.recorder, replace(self.flow, step=step))
        if select_key is None:
            return made
        check_mapper("to_stream", select_key, with_key=with_key, what="select_key")
        return made.select_key(select_key, with_key=with_key)  # type: ignore[call-overload]

    def to_pandas(self, inputs: Mapping[str, Iterable[Any]], *, limit: int | None = None, **settings: Any) -> DataFrame:
        """Run the program so far in the test driver, and return the rows of this table at the end, as a DataFrame.

        The rows are in the order in which their keys were first there, each with the timestamp of its last update;
        `limit` is the highest number of updates that are looked at. The arguments are those of `KStream.to_pandas`.

        >>> from penstock.dsl import StreamsBuilder
        >>> counts = StreamsBuilder().stream("words").group_by(lambda word: word).count("counts")
        >>> counts.to_pandas({"words": [("a", "to", 0), ("b", "be", 1_000), ("c", "to", 2_000)]})
          key  value                 timestamp
        0  to      2 1970-01-01 00:00:02+00:00
        1  be      1 1970-01-01 00:00:01+00:00
        """
        # Only here: whoever runs a program does not need what tests it.
        from penstock.plugins.testing.frames import to_pandas

        return to_pandas(self, inputs, limit=limit, only_latest=True, **settings)

    @overload
    def group_by(
        self, select_key: Callable[[V], K2], select_value: None = None, **options: Unpack[GroupingWithoutKey]
    ) -> KGroupedTable[K2, V]: ...
    @overload
    def group_by(
        self, select_key: Callable[[K, V], K2], select_value: None = None, **options: Unpack[GroupingWithKey]
    ) -> KGroupedTable[K2, V]: ...
    @overload
    def group_by(
        self,
        select_key: Callable[..., K2],
        select_value: Callable[..., Any],
        *,
        with_key: bool = False,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        name: str | None = None,
    ) -> KGroupedTable[K2, Any]: ...
    def group_by(
        self,
        select_key: Callable[..., Any],
        select_value: Callable[..., Any] | None = None,
        *,
        with_key: bool = False,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        name: str | None = None,
    ) -> Any:
        """Group the rows by the key that `select_key` returns, for an aggregation of each group.

        With `select_value`, the groups have what it returns in place of the values. Both get the value, or with
        `with_key=True` key and value; a row for which one of them returns None is in no group. Updates go through a
        repartition topic, `NAME-repartition`, or without `name`, named after the store. Raises TopologyError for a
        table whose rows expire (`ttl`): its groups would not lose them. Semantics: Kafka Streams' KTable.groupBy.
        """
        check_mapper("group_by", select_key, with_key=with_key, what="select_key")
        if select_value is not None:
            check_mapper("group_by", select_value, with_key=with_key, what="select_value")
        if self.source.expiring is not None:
            raise TopologyError(
                f"group_by: rows expire in store {self.source.expiring!r} (ttl), which sends no update: a row that has "
                "expired would stay in its group, and count again when it comes back. Leave out the ttl, and delete "
                "rows by a value of None, for instance with a timer in process(...).to_table(...)"
            )
        step = ProcessorStep(
            self.recorder.names.step("KTABLE-SELECT-", name),
            TableSelect,
            {
                "select_key": keyed(select_key, with_key=with_key),
                "select_value": None if select_value is None else keyed(select_value, with_key=with_key),
                "ignores_older": self.source.is_versioned,
            },
            late=lambda writer: group_options(writer, step, serdes.key),
        )
        self.recorder.add(step, self.flow.step)
        self.source.send_old_values(force=True)
        known = Serdes(None, self.flow.serdes.value if select_value is None else None)
        serdes = known.given(key_serde, value_serde)
        return self.recorder.kinds.grouped_table(
            self.recorder, Flow(step, serdes, self.flow.sources), None if name is None else checked(name)
        )

    def suppress(
        self,
        until: Duration,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        when_full: str | None = None,
        idle: Duration | None = None,
        name: str | None = None,
        logged: bool = True,
        topic_config: TopicConfig | None = None,
    ) -> KTable[K, V]:
        """Keep updates back, and let the last one of each key go.

        `until="window_closes"` is for tables of windows: each window leaves once, when stream time has reached its end
        and the grace; deletions do not leave. With `until` a duration, a key leaves so long after the timestamp of the
        first update that is kept; more updates of the key do not change its turn. Stream time is the highest timestamp
        of the updates that this verb got. Updates leave by time, then by the bytes of their keys.

        The buffer is a store, `NAME-store`. `max_records` and `max_bytes` (about what keys, values and headers take)
        bound it. When it is full, `when_full="emit_early"` lets the oldest go and `"stop"` fails; a window cannot go
        before it closes, so there it is "stop".
        Stream time moves only with updates. `idle="30s"` lets it go on with the wall clock after so long without any,
        as `windowed_by(..., idle=)` does: what is decided is committed with the task, so a crash changes nothing, but
        to process everything again may have other results. An update of a window that has left already is then dropped
        and counted (`late`).
        Semantics: Kafka Streams' `suppress` (KIP-328), which has no `idle`.

        ::

            updates   a=1   a=2   b=1         a=3           until="10s"; the numbers above are seconds
            time       0     4     6    10     12    16
            leaves                      a=2         b=1     then a=3 at 22
        """
        if self.source.is_versioned:
            raise TopologyError(
                "suppress: the table keeps versions, and some of its updates are older than its latest ones, which the "
                "buffer cannot keep apart. Give it a store without versions first: "
                'table.map_values(lambda value: value, store="NAME").suppress(...)'
            )
        options = suppress_options(self.flow.step, until, max_records, max_bytes, when_full, idle)
        names = self.recorder.names
        step_name = names.unless_given(name, _SUPPRESS)
        store = names.store(_SUPPRESS, 'suppress(..., name="NAME")') if name is None else f"{step_name}-store"
        self.source.send_old_values(force=True)
        step = suppress_step(step_name, store, self.flow, options, logged=logged, topic_config=topic_config)
        self.recorder.add(step, self.flow.step)
        flow = Flow(step, self.flow.serdes, self.flow.sources)
        return self._table_of(flow, SuppressedTable(step, store, flow.serdes, self.source), None)
