"""KStream: a stream of records; the verbs that group them, and that show them while a program is being written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock import TopologyError
from penstock.program.serdes import SerdeLike

from .graph.functions import check_mapper
from .graph.materialized import GroupingWithKey, GroupingWithoutKey
from .graph.names import checked
from .graph.serdes import Serdes
from .graph.step import Flow, ProcessorStep
from .operators.stateless.map import SelectKey
from .operators.stateless.table_printer import TablePrinter
from .stream_base import K, V
from .stream_joins import Joining
from .stream_stateless import Stateless

if TYPE_CHECKING:
    from pandas import DataFrame

    from .grouped import KGroupedStream

K2 = TypeVar("K2")


class KStream(Stateless[K, V], Joining[K, V]):
    """A stream of records: each stands for itself, and a KTable's replaces the earlier one of its key.

    `StreamsBuilder.stream` makes the first one, and every verb another. Semantics: Kafka Streams' KStream.
    """

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

    def print_table(
        self, *, label: str | None = None, columns: Sequence[str] | None = None, name: str | None = None
    ) -> None:
        """Print each record as a row: key, value (a column for each entry of a dict), and timestamp in UTC.

        The table begins with `label`, by default the node that makes the records, and has its header again after rows
        of other tables. `columns` are the entries to show, by default all. A deletion has "-" in place of its value. On
        Spark, rows go to the logs of its workers.

        >>> from penstock.dsl import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("clicks", value_serde="json").print_table(label="clicks")
        >>> from penstock.testing import TopologyTestDriver
        >>> with TopologyTestDriver(builder) as driver:
        ...     driver.pipe("clicks", "anna", {"page": "/home", "ms": 5}, 0)
        ...     driver.pipe("clicks", "ben", {"page": "/", "ms": 125}, 1_500)
        [clicks]
        key      | page     | ms       | timestamp
        ---------+----------+----------+------------------------
        anna     | /home    |        5 | 1970-01-01 00:00:00.000
        ben      | /        |      125 | 1970-01-01 00:00:01.500
        """
        options: dict[str, Any] = {"label": label or self.flow.step.name}
        if columns is not None:
            if isinstance(columns, str) or not all(isinstance(each, str) for each in columns):
                raise TopologyError(f"print_table: columns: expected names of entries in a list, found {columns!r}")
            options["columns"] = tuple(columns)
        self._processed("KSTREAM-PRINTER-", name, TablePrinter, options, self.flow.serdes)

    def to_pandas(self, inputs: Mapping[str, Iterable[Any]], *, limit: int | None = None, **settings: Any) -> DataFrame:
        """Run the program so far in the test driver, and return this stream's records: at most `limit`, the first.

        `inputs` are records by topic: Record, or (key, value), (key, value, timestamp in ms) or with headers as well.
        They are sent in the order of timestamps as far as the topics' own orders allow. `settings` are the
        application's. A value that is a dict becomes columns, and so does the window of a windowed key. The program
        itself stays as it is.

        >>> from penstock.dsl import StreamsBuilder
        >>> words = StreamsBuilder().stream("words").map_values(str.upper)
        >>> words.to_pandas({"words": [("a", "one", 0), ("b", "two", 1_000)]})
          key value                 timestamp
        0   a   ONE 1970-01-01 00:00:00+00:00
        1   b   TWO 1970-01-01 00:00:01+00:00
        """
        # Only here: whoever runs a program does not need what tests it.
        from penstock.plugins.testing.frames import to_pandas

        return to_pandas(self, inputs, limit=limit, **settings)
