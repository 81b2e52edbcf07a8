"""KStream: a stream of records; the verbs that show them while a program is being written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .operators.stateless.table_printer import TablePrinter
from .stream_base import K, V
from .stream_grouping import Grouping
from .stream_joins import Joining
from .stream_stateless import Stateless

if TYPE_CHECKING:
    from pandas import DataFrame


class KStream(Stateless[K, V], Grouping[K, V], Joining[K, V]):
    """A stream of records: each stands for itself, and a KTable's replaces the earlier one of its key.

    `StreamsBuilder.stream` makes the first one, and every verb another. Semantics: Kafka Streams' KStream.
    """

    def print_table(self, *, name: str | None = None) -> None:
        """Print each record as a row: key, value (a column for each entry of a dict), and timestamp in UTC.

        A deletion has "-" in place of its value. On Spark, rows go to the logs of its workers.

        >>> from penstock.plugins.dsl import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("clicks", value_serde="json").print_table()
        >>> from penstock.plugins.testing import TopologyTestDriver
        >>> with TopologyTestDriver(builder) as driver:
        ...     driver.pipe("clicks", "anna", {"page": "/home", "ms": 5}, 0)
        ...     driver.pipe("clicks", "ben", {"page": "/", "ms": 125}, 1_500)
        key  | page  | ms | timestamp
        -----+-------+----+------------------------
        anna | /home |  5 | 1970-01-01 00:00:00.000
        ben  | /     | 125 | 1970-01-01 00:00:01.500
        """
        self._processed("KSTREAM-PRINTER-", name, TablePrinter, {}, self.flow.serdes)

    def to_pandas(self, inputs: Mapping[str, Iterable[Any]], *, limit: int | None = None, **settings: Any) -> DataFrame:
        """Run the program so far in the test driver, and return this stream's records: at most `limit`, the first.

        `inputs` are records by topic: Record, or (key, value), (key, value, timestamp in ms) or with headers as well.
        They are sent in the order of timestamps as far as the topics' own orders allow. `settings` are the
        application's. A value that is a dict becomes columns, and so does the window of a windowed key. The program
        itself stays as it is.

        >>> from penstock.plugins.dsl import StreamsBuilder
        >>> words = StreamsBuilder().stream("words").map_values(str.upper)
        >>> words.to_pandas({"words": [("a", "one", 0), ("b", "two", 1_000)]})
          key value                 timestamp
        0   a   ONE 1970-01-01 00:00:00+00:00
        1   b   TWO 1970-01-01 00:00:01+00:00
        """
        # Only here: whoever runs a program does not need what tests it.
        from penstock.plugins.testing.frames import to_pandas

        return to_pandas(self, inputs, limit=limit, **settings)
