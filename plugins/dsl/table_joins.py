"""The verbs that join tables by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock.errors import TopologyError
from penstock.program.nodes import Partitioner
from penstock.store.specs import StoreSpec

from .graph.functions import check_function, check_mapper, check_same_program, keyed
from .graph.materialized import StoreLike, StoreOptions
from .graph.serdes import Serdes, check_same_keys
from .graph.step import Flow, ProcessorStep
from .graph.with_key import StoreWithKey, StoreWithoutKey
from .missing_verbs import found
from .operators.foreign_key.steps import ForeignKeyJoin
from .operators.joins import TableSide
from .operators.table_join.joined_table import JoinedGetter, JoinedTable, join_step
from .operators.table_join.tables import TableMerge
from .stream_base import K, StreamBase, V
from .table_base import GlobalKTable, TableBase, keep, serdes_with

if TYPE_CHECKING:
    from .table import KTable

V2 = TypeVar("V2")
R = TypeVar("R")
Joiner = Callable[[Any, Any, Any], Any]


class ForeignKeyWithoutKey(StoreWithoutKey, total=False):
    """For a join with functions of values. The partitioners are for a join by foreign key."""

    partitioner: Partitioner | None
    other_partitioner: Partitioner | None


class ForeignKeyWithKey(StoreWithKey, total=False):
    """For a join with functions that get the key first. The partitioners are for a join by foreign key."""

    partitioner: Partitioner | None
    other_partitioner: Partitioner | None


class TableJoins(TableBase[K, V]):
    """Joins of tables: at every moment, the result has a row for each key as a join in a database would.

    `joiner` gets the values of both rows, this table's first, and with `with_key=True` the key before them. The result
    has the later of both timestamps. `store` is the name of a store for the result, or a declared store; without it,
    the result is computed from both tables when it is needed. Both topics need equal numbers of partitions, and equal
    keys in equal partitions. Of a table with versions, only the latest ones count.

    A join by `foreign_key` works for any numbers of partitions. Updates go to the other table's partitions and back
    through two topics of the application's own, `NAME-subscription-registration-topic` and
    `NAME-subscription-response-topic`: the result is that of a join in a database once both are drained. If a table's
    topic was not partitioned by the default partitioner, say which: `other_partitioner` for the other table's keys,
    `partitioner` for this one's (KIP-775); they get records without a value.
    """

    @overload
    def join(
        self,
        other: KTable[Any, V2],
        joiner: Callable[[V, V2], R],
        store: StoreLike | None = None,
        *,
        foreign_key: Callable[[V], Any] | None = None,
        **options: Unpack[ForeignKeyWithoutKey],
    ) -> KTable[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[Any, V2],
        joiner: Callable[[K, V, V2], R],
        store: StoreLike | None = None,
        *,
        foreign_key: Callable[[K, V], Any] | None = None,
        **options: Unpack[ForeignKeyWithKey],
    ) -> KTable[K, R]: ...
    def join(
        self,
        other: KTable[Any, V2],
        joiner: Callable[..., R],
        store: StoreLike | None = None,
        *,
        foreign_key: Callable[..., Any] | None = None,
        with_key: bool = False,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> KTable[K, R]:
        """Return a table with a row for each key that both tables have.

        ::

            time      1        2        3        4
            left      a: 1              a: 2
            right              a: x              a deleted
            result             a: 1x    a: 2x    a deleted

        With `foreign_key`, a function of this table's value (with `with_key=True`, of key and value), each row is
        joined with the row of the other table that has this key; no row if it returns None. See `TableJoins`.

        Semantics: Kafka Streams' KTable-KTable join, and its foreign-key join (KIP-213).
        """
        made: KTable[K, R]
        if foreign_key is None and partitioner is None and other_partitioner is None:
            made = self._joined("join", other, joiner, store, with_key, name, options)
        else:
            partitioners = partitioner, other_partitioner
            made = self._by_foreign_key(
                "join", other, joiner, store, foreign_key, with_key, name, partitioners, options
            )
        return made

    @overload
    def left_join(
        self,
        other: KTable[Any, V2],
        joiner: Callable[[V, V2 | None], R],
        store: StoreLike | None = None,
        *,
        foreign_key: Callable[[V], Any] | None = None,
        **options: Unpack[ForeignKeyWithoutKey],
    ) -> KTable[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[Any, V2],
        joiner: Callable[[K, V, V2 | None], R],
        store: StoreLike | None = None,
        *,
        foreign_key: Callable[[K, V], Any] | None = None,
        **options: Unpack[ForeignKeyWithKey],
    ) -> KTable[K, R]: ...
    def left_join(
        self,
        other: KTable[Any, V2],
        joiner: Callable[..., R],
        store: StoreLike | None = None,
        *,
        foreign_key: Callable[..., Any] | None = None,
        with_key: bool = False,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> KTable[K, R]:
        """Return a table with a row for each key that this table has; the joiner gets None for a missing other row.

        ::

            time      1        2        3        4
            left      a: 1              a: 2
            right              a: x              a deleted
            result    a: 1-    a: 1x    a: 2x    a: 2-

        With `foreign_key`, a row whose function returns None has a result without the other row; see `join`.

        Semantics: Kafka Streams' KTable-KTable left join, and its foreign-key left join (KIP-213).
        """
        made: KTable[K, R]
        if foreign_key is None and partitioner is None and other_partitioner is None:
            made = self._joined("left_join", other, joiner, store, with_key, name, options)
        else:
            partitioners = partitioner, other_partitioner
            made = self._by_foreign_key(
                "left_join", other, joiner, store, foreign_key, with_key, name, partitioners, options
            )
        return made

    @overload
    def outer_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V | None, V2 | None], R],
        store: StoreLike | None = None,
        **options: Unpack[StoreWithoutKey],
    ) -> KTable[K, R]: ...
    @overload
    def outer_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[K, V | None, V2 | None], R],
        store: StoreLike | None = None,
        **options: Unpack[StoreWithKey],
    ) -> KTable[K, R]: ...
    def outer_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[..., R],
        store: StoreLike | None = None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> KTable[K, R]:
        """Return a table with a row for each key that one of the tables has; the joiner gets None for a missing row.

        ::

            time      1        2        3              4
            left      a: 1              a deleted
            right              a: x                    a deleted
            result    a: 1-    a: 1x    a: -x          a deleted

        Semantics: Kafka Streams' KTable-KTable outer join.
        """
        made: KTable[K, R] = self._joined("outer_join", other, joiner, store, with_key, name, options)
        return made

    def _joined(
        self,
        verb: str,
        other: TableBase[Any, Any],
        joiner: Callable[..., Any],
        store: StoreLike | None,
        with_key: bool,
        name: str | None,
        options: Any,
    ) -> Any:
        check_table(verb, self, other, store)
        check_function(verb, joiner, *(("key", "left", "right") if with_key else ("left", "right")), what="joiner")
        how = "bring one of them to the other's: table.to_stream().repartition(NAME, key_serde=...).to_table()"
        check_same_keys(verb, self.flow.serdes.key, other.flow.serdes.key, how=how)
        left_outer, right_outer = verb != "join", verb == "outer_join"
        names = self.recorder.names
        kept = self._kept(verb, store, options, "KTABLE-MERGE-")
        merge = ProcessorStep(names.step("KTABLE-MERGE-", name), TableMerge, {"sends_old": False})
        if left_outer:
            self.source.send_old_values(force=True)
        if right_outer:
            other.source.send_old_values(force=True)
        left, right = self.source.getter(), other.source.getter()
        join: Joiner = joiner if with_key else lambda key, mine, others: joiner(mine, others)
        sides = (
            join_step(
                names.suffixed(name, "-join-this", "KTABLE-JOINTHIS-"),
                {"joiner": join, "other": right, "needs_this": not right_outer, "needs_other": not left_outer},
                self.source,
            ),
            join_step(
                names.suffixed(name, "-join-other", "KTABLE-JOINOTHER-"),
                {
                    "joiner": lambda key, mine, others: join(key, others, mine),
                    "other": left,
                    "needs_this": not left_outer,
                    "needs_other": not right_outer,
                },
                other.source,
            ),
        )
        serdes = serdes_with(kept, options, Serdes(self.flow.serdes.key))
        keep(merge, kept, serdes)
        self.recorder.add(sides[0], self.flow.step)
        self.recorder.add(sides[1], other.flow.step)
        self.recorder.add(merge, *sides)
        sources = self.flow.sources | other.flow.sources
        self.recorder.copartition(sources)
        kind = {"join": "inner", "left_join": "left", "outer_join": "outer"}[verb]
        source = JoinedTable((self.source, other.source), (*sides, merge), kept, JoinedGetter(left, right, join, kind))
        return self.recorder.kinds.table(
            self.recorder, Flow(merge, serdes, sources), source, None if kept is None else kept.name
        )

    def _by_foreign_key(
        self,
        verb: str,
        other: TableBase[Any, Any],
        joiner: Callable[..., Any],
        store: StoreLike | None,
        foreign_key: Callable[..., Any] | None,
        with_key: bool,
        name: str | None,
        partitioners: tuple[Partitioner | None, Partitioner | None],
        options: Any,
    ) -> Any:
        check_table(verb, self, other, store)
        if foreign_key is None:
            raise TopologyError(
                f"{verb}: partitioner and other_partitioner are for joins by foreign key; without foreign_key=, equal "
                "keys of both tables must be in equal partitions"
            )
        check_function(verb, joiner, *(("key", "left", "right") if with_key else ("left", "right")), what="joiner")
        check_mapper(verb, foreign_key, with_key=with_key, what="foreign_key")
        join = ForeignKeyJoin(
            self.recorder,
            TableSide(self.flow, self.source),
            TableSide(other.flow, other.source),
            keyed(foreign_key, with_key=with_key),
            joiner if with_key else lambda key, mine, others: joiner(mine, others),
            verb == "left_join",
            name,
            *partitioners,
        )
        return join.add(verb, store, options)


def check_table(verb: str, table: TableBase[Any, Any], other: Any, store: object) -> None:
    """Refuse anything but a table of the same program, and a function for a store. Raises TopologyError."""
    if isinstance(other, StreamBase):
        raise TopologyError(
            f"{verb}: expected a KTable, found a KStream; a table is joined with the latest value of each key: write "
            "stream.to_table(), or join the stream with the table: stream.join(table, joiner)"
        )
    if isinstance(other, GlobalKTable):
        raise TopologyError(
            f"{verb}: expected a KTable, found a GlobalKTable, with which only streams are joined: write "
            f"table.to_stream().{verb}(global_table, JOINER)"
        )
    if not isinstance(other, TableBase):
        raise TopologyError(f"{verb}: expected a KTable, found {found(other)}; make one with builder.table(TOPIC)")
    check_same_program(verb, table, other)
    if callable(store) and not isinstance(store, StoreSpec):
        raise TopologyError(
            f"{verb}: the joiner comes second here, and a function that makes the foreign key is given by name (Kafka "
            f"Streams' order is another): write {verb}(other, JOINER, foreign_key=FUNCTION)"
        )
