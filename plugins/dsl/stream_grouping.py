"""The verbs that group records by key, for aggregations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock.program.serdes import SerdeLike

from .graph.functions import check_mapper
from .graph.names import checked
from .graph.serdes import Serdes
from .graph.step import Flow, ProcessorStep
from .graph.with_key import GroupingWithKey, GroupingWithoutKey
from .operators.stateless.map import SelectKey
from .stream_base import K, StreamBase, V

if TYPE_CHECKING:
    from .grouped import KGroupedStream

K2 = TypeVar("K2")


class Grouping(StreamBase[K, V]):
    """Grouping by key."""

    def group_by_key(
        self, *, key_serde: SerdeLike = None, value_serde: SerdeLike = None, name: str | None = None
    ) -> KGroupedStream[K, V]:
        """Group by the key there is. If a verb before may have changed keys, records go through a repartition topic.

        `name` names that topic (`NAME-repartition`). Serdes are the stream's, as far as they are known.
        """
        flow = replace(self.flow, serdes=self.flow.serdes.given(key_serde, value_serde))
        made: KGroupedStream[K, V] = self.recorder.kinds.grouped_stream(
            self.recorder, flow, None if name is None else checked(name)
        )
        return made

    @overload
    def group_by(self, function: Callable[[V], K2], **options: Unpack[GroupingWithoutKey]) -> KGroupedStream[K2, V]: ...
    @overload
    def group_by(self, function: Callable[[K, V], K2], **options: Unpack[GroupingWithKey]) -> KGroupedStream[K2, V]: ...
    def group_by(
        self,
        function: Callable[..., Any],
        *,
        with_key: bool = False,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        name: str | None = None,
    ) -> Any:
        """Group by the key that `function` returns: records go through a repartition topic, `NAME-repartition`."""
        check_mapper("group_by", function, with_key=with_key)
        step = ProcessorStep(
            self.recorder.names.step("KSTREAM-KEY-SELECT-", name),
            SelectKey,
            {"function": function, "with_key": with_key},
            changes_key=True,
        )
        self.recorder.add(step, self.flow.step)
        serdes = Serdes(None, self.flow.serdes.value).given(key_serde, value_serde)
        return self.recorder.kinds.grouped_stream(self.recorder, Flow(step, serdes, self.flow.sources, True), name)
