"""KTable: the latest value of each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from .graph.functions import check_mapper
from .graph.step import Flow, ProcessorStep
from .graph.with_key import WithKey, WithoutKey
from .operators.stateless.table_values import ToStream
from .stream_base import K, V
from .table_base import TableBase
from .table_grouping import TableGrouping
from .table_joins import TableJoins
from .table_stateless import TableStateless
from .table_suppress import Suppression

if TYPE_CHECKING:
    from .stream import KStream

K2 = TypeVar("K2")

__all__ = ["KTable", "TableBase"]


class KTable(TableStateless[K, V], TableJoins[K, V], TableGrouping[K, V], Suppression[K, V]):
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
        made: KStream[K, V] = self.recorder.kinds.stream(
            self.recorder, Flow(step, self.flow.serdes, self.flow.sources, self.flow.needs_repartition)
        )
        if select_key is None:
            return made
        check_mapper("to_stream", select_key, with_key=with_key, what="select_key")
        return made.select_key(select_key, with_key=with_key)  # type: ignore[call-overload]
