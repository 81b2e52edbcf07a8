"""The verb that groups the rows of a table by another key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock.program.serdes import SerdeLike

from .graph.functions import check_mapper, keyed
from .graph.names import checked
from .graph.serdes import Serdes
from .graph.step import Flow, ProcessorStep
from .graph.with_key import GroupingWithKey, GroupingWithoutKey
from .operators.aggregate.table_select import TableSelect
from .stream_base import K, V
from .table_base import TableBase

if TYPE_CHECKING:
    from .grouped_table import KGroupedTable

K2 = TypeVar("K2")


class TableGrouping(TableBase[K, V]):
    """Grouping by another key."""

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
        repartition topic, `NAME-repartition`, or without `name`, named after the store. Semantics: Kafka Streams'
        KTable.groupBy.
        """
        check_mapper("group_by", select_key, with_key=with_key, what="select_key")
        if select_value is not None:
            check_mapper("group_by", select_value, with_key=with_key, what="select_value")
        step = ProcessorStep(
            self.recorder.names.step("KTABLE-SELECT-", name),
            TableSelect,
            {
                "select_key": keyed(select_key, with_key=with_key),
                "select_value": None if select_value is None else keyed(select_value, with_key=with_key),
                "ignores_older": self.source.is_versioned,
            },
        )
        self.recorder.add(step, self.flow.step)
        self.source.send_old_values(force=True)
        known = Serdes(None, self.flow.serdes.value if select_value is None else None)
        serdes = known.given(key_serde, value_serde)
        return self.recorder.kinds.grouped_table(
            self.recorder, Flow(step, serdes, self.flow.sources), None if name is None else checked(name)
        )
