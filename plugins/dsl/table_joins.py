"""The verbs that join tables by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock import Partitioner, StoreSpec, TopologyError

from .base import GlobalKTable, K, StreamBase, TableBase, V
from .graph.functions import check_function, check_mapper, check_same_program, keyed
from .graph.materialized import optional
from .graph.options import ForeignKeyWithKey, ForeignKeyWithoutKey, StoreLike, StoreWithKey, StoreWithoutKey
from .graph.serdes import check_same_keys
from .missing_verbs import found
from .operators.foreign_key import ForeignKeyJoin
from .operators.joins import INNER, LEFT, OUTER, Joiner, JoinKind, TableSide
from .operators.table_join import record_tables_join

if TYPE_CHECKING:
    from .table import KTable

V2 = TypeVar("V2")
R = TypeVar("R")


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
        self, other: KTable[Any, V2], joiner: Callable[..., R], store: StoreLike | None = None, **options: Any
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
        by = options.pop("foreign_key", None), options.pop("partitioner", None), options.pop("other_partitioner", None)
        return self._joined(INNER, other, joiner, store, *by, **options)

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
        self, other: KTable[Any, V2], joiner: Callable[..., R], store: StoreLike | None = None, **options: Any
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
        by = options.pop("foreign_key", None), options.pop("partitioner", None), options.pop("other_partitioner", None)
        return self._joined(LEFT, other, joiner, store, *by, **options)

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
        self, other: KTable[K, V2], joiner: Callable[..., R], store: StoreLike | None = None, **options: Any
    ) -> KTable[K, R]:
        """Return a table with a row for each key that one of the tables has; the joiner gets None for a missing row.

        ::

            time      1        2        3              4
            left      a: 1              a deleted
            right              a: x                    a deleted
            result    a: 1-    a: 1x    a: -x          a deleted

        Semantics: Kafka Streams' KTable-KTable outer join.
        """
        return self._joined(OUTER, other, joiner, store, None, None, None, **options)

    def _joined(
        self,
        kind: JoinKind,
        other: TableBase[Any, Any],
        joiner: Callable[..., Any],
        store: StoreLike | None,
        foreign_key: Callable[..., Any] | None,
        partitioner: Partitioner | None,
        other_partitioner: Partitioner | None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> KTable[Any, Any]:
        verb, recorder = kind.verb, self.recorder
        check_table(verb, self, other, store)
        if foreign_key is None and (partitioner is not None or other_partitioner is not None):
            raise TopologyError(
                f"{verb}: partitioner and other_partitioner are for joins by foreign key; without foreign_key=, equal "
                "keys of both tables must be in equal partitions"
            )
        check_function(verb, joiner, *(("key",) if with_key else ()), "left", "right", what="joiner")
        how = Joiner(joiner, with_key)
        left, right = TableSide(self.flow, self.source), TableSide(other.flow, other.source)
        if foreign_key is None:
            mend = "bring one of them to the other's: table.to_stream().repartition(NAME, key_serde=...).to_table()"
            check_same_keys(verb, left.flow.serdes.key, right.flow.serdes.key, how=mend)
            kept = optional(verb, recorder.names, store, options, "KTABLE-MERGE-")
            flow, source = record_tables_join(recorder, kind, left, right, how, kept, name)
            return self._table_of(flow, source, kept.own_name)
        check_mapper(verb, foreign_key, with_key=with_key, what="foreign_key")
        key, partitioners = keyed(foreign_key, with_key=with_key), (partitioner, other_partitioner)
        join = ForeignKeyJoin(recorder, left, right, key, how.compile(), kind.keeps_left, name, *partitioners)
        return self._table_of(*join.add(verb, store, options))


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
