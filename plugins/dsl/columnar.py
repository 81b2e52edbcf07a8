"""The verb that makes several aggregates at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .graph.materialized import StoreLike
from .graph.serdes import KnownSerde
from .operators.aggregate.aggregator import Aggregator
from .operators.aggregate.folds import Aggregating, Fold
from .operators.aggregate.grouped_source import AGGREGATE
from .operators.aggregate.several import Column, columns_of

if TYPE_CHECKING:
    from .table import KTable

R = TypeVar("R")


class Columnar(Generic[R]):
    """Several aggregates at once; R is the type of the table's keys."""

    @abstractmethod
    def _aggregation(
        self,
        verb: str,
        prefix: str,
        fold: Fold,
        store: StoreLike | None,
        name: str | None,
        options: Any,
        value_serde: KnownSerde,
    ) -> Any:
        """Add an aggregation; return its table."""

    def agg(
        self, store: StoreLike | None = None, *, name: str | None = None, **columns: Column
    ) -> KTable[R, dict[str, Any]]:
        """Make several aggregates at once; the table's values are dicts.

        Each is a `sum_of`, `max_of`, `min_of`, `mean_of`, `count_of`, `first_of`, `last_of` or `collect_of` a field
        (its name, or a function of the value); without one, of the value itself. A field that is None is left out.
        The store has the aggregates in the serde of the state (msgpack).

        >>> from penstock.plugins.dsl import StreamsBuilder, max_of, sum_of
        >>> from penstock.plugins.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> sales = builder.stream("sales", value_serde="json").group_by_key()
        >>> sums = sales.agg("sums", total=sum_of("price"), largest=max_of("price"))
        >>> sums.to_stream().to("out", value_serde="json")
        >>> with TopologyTestDriver(builder) as driver:
        ...     for price in (3, 5, 2):
        ...         driver.pipe("sales", "anna", {"price": price})
        ...     driver.read_all("out")[-1].value
        {'total': 10, 'largest': 5}
        """
        checked = columns_of(columns)
        fold = Aggregating(checked.initial, Aggregator(checked.taken), merger=checked.merged)
        made: KTable[R, Any] = self._aggregation("agg", AGGREGATE, fold, store, name, {}, None)
        return made.map_values(checked.shown)
