"""KStream: a stream of records; the verbs that group them, and that show them while a program is being written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from penstock import Duration, Record, TopologyError
from penstock.program.serdes import SerdeLike

from .base import K, StreamBase, V
from .graph.functions import check_function, check_mapper, check_same_program, keyed
from .graph.names import checked
from .graph.options import (
    BatchWithKey,
    BatchWithoutKey,
    GroupingWithKey,
    GroupingWithoutKey,
    OfRecord,
    WithKey,
    WithoutKey,
)
from .graph.serdes import Serdes, different_keys
from .graph.step import Flow, PassThrough, ProcessorStep
from .missing_verbs import Verbs, found
from .operators.batch import Form, MapValuesBatch, check_batch
from .operators.map import (
    Branch,
    Filter,
    FlatMap,
    FlatMapValues,
    Map,
    MapValues,
    Peek,
    Printer,
    SelectKey,
    TablePrinter,
)
from .operators.record_parts import HeadersLike, WithHeaders, WithTimestamp, check_of_record
from .stream_lookups import Lookups
from .stream_state import Stateful

if TYPE_CHECKING:
    from pandas import DataFrame

    from .grouped import KGroupedStream


Then = Callable[[Any], Any]
"""Gets the stream of a branch; what it returns takes the stream's place among the branches (None: it has none)."""


class BranchedKStream(Verbs, Generic[K, V]):
    """A stream that is being split. Semantics: Kafka Streams' BranchedKStream (KIP-418)."""

    kind = "split stream"

    def __init__(self, source: StreamBase[K, V], name: str | None) -> None:
        self._source = source
        self._streams: dict[str, KStream[K, V]] = {}
        self._predicates: list[Callable[[Any, Any], Any]] = []
        self._children: list[str] = []
        node = source.recorder.names.step("KSTREAM-BRANCH-", name)
        options = {"predicates": self._predicates, "children": self._children, "default": None}
        self._step = source.recorder.add(ProcessorStep(node, Branch, options), source.flow.step)

    @overload
    def branch(
        self,
        predicate: Callable[[V], Any],
        name: str | None = None,
        *,
        with_key: Literal[False] = False,
        then: Then | None = None,
    ) -> BranchedKStream[K, V]: ...
    @overload
    def branch(
        self,
        predicate: Callable[[K, V], Any],
        name: str | None = None,
        *,
        with_key: Literal[True],
        then: Then | None = None,
    ) -> BranchedKStream[K, V]: ...
    def branch(
        self,
        predicate: Callable[..., Any],
        name: str | None = None,
        *,
        with_key: bool = False,
        then: Then | None = None,
    ) -> BranchedKStream[K, V]:
        """Add a branch for records that `predicate` accepts. Without a name it is called "1", "2" and so on.

        `then` is called with its stream.
        """
        check_mapper("branch", predicate, with_key=with_key, what="predicate")
        self._predicates.append(keyed(predicate, with_key=with_key))
        self._children.append(self._add(str(len(self._predicates)) if name is None else checked(name), then))
        return self

    def default(self, name: str | None = None, *, then: Then | None = None) -> dict[str, KStream[K, V]]:
        """Add a branch for all other records, named "0" without a name. Return the streams of the branches by name."""
        self._step.options["default"] = self._add("0" if name is None else checked(name), then)
        return self._streams

    def no_default(self) -> dict[str, KStream[K, V]]:
        """Let all other records go. Return the streams of the branches by name."""
        return self._streams

    def _add(self, name: str, then: Then | None) -> str:
        recorder, flow = self._source.recorder, self._source.flow
        child = self._step.name + name
        if child in self._children:
            raise TopologyError(f"branch {name!r} is there already; choose another name")
        recorder.names.step(child)
        step = recorder.add(ProcessorStep(child, PassThrough), self._step)
        made = recorder.kinds.stream(recorder, Flow(step, flow.serdes, flow.sources, flow.needs_repartition))
        if then is not None:
            check_function("branch", then, "stream", what="then")
            made = then(made)
        if made is not None:
            self._streams[name] = made
        return child


K2 = TypeVar("K2")
V2 = TypeVar("V2")


class Stateless(Lookups[K, V]):
    """Filters, mappers and their like.

    Every function gets the value; with `with_key=True` it gets the key first. `name` is the node's; without one it is
    numbered.
    """

    @overload
    def filter(self, predicate: Callable[[V], Any], **options: Unpack[WithoutKey]) -> KStream[K, V]: ...
    @overload
    def filter(self, predicate: Callable[[K, V], Any], **options: Unpack[WithKey]) -> KStream[K, V]: ...
    def filter(self, predicate: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Keep the records for which `predicate` is true."""
        options = check_mapper("filter", predicate, with_key=with_key, what="predicate")
        return self._processed("KSTREAM-FILTER-", name, Filter, options, self.flow.serdes)

    @overload
    def filter_not(self, predicate: Callable[[V], Any], **options: Unpack[WithoutKey]) -> KStream[K, V]: ...
    @overload
    def filter_not(self, predicate: Callable[[K, V], Any], **options: Unpack[WithKey]) -> KStream[K, V]: ...
    def filter_not(self, predicate: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Keep the records for which `predicate` is not true."""
        options = check_mapper("filter_not", predicate, with_key=with_key, what="predicate")
        return self._processed("KSTREAM-FILTER-", name, Filter, {**options, "inverted": True}, self.flow.serdes)

    @overload
    def map(self, function: Callable[[V], tuple[K2, V2]], **options: Unpack[WithoutKey]) -> KStream[K2, V2]: ...
    @overload
    def map(self, function: Callable[[K, V], tuple[K2, V2]], **options: Unpack[WithKey]) -> KStream[K2, V2]: ...
    def map(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Replace each record by the (key, value) pair that `function` returns."""
        options = check_mapper("map", function, with_key=with_key)
        return self._processed("KSTREAM-MAP-", name, Map, options, Serdes(), changes_key=True, changes_value=True)

    @overload
    def map_values(self, function: Callable[[V], V2], **options: Unpack[WithoutKey]) -> KStream[K, V2]: ...
    @overload
    def map_values(self, function: Callable[[K, V], V2], **options: Unpack[WithKey]) -> KStream[K, V2]: ...
    def map_values(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Replace each value by what `function` returns."""
        options = check_mapper("map_values", function, with_key=with_key)
        serdes = Serdes(self.flow.serdes.key)
        return self._processed("KSTREAM-MAPVALUES-", name, MapValues, options, serdes, changes_value=True)

    @overload
    def map_values_batch(
        self, function: Callable[[Any], Iterable[V2]], **options: Unpack[BatchWithoutKey]
    ) -> KStream[K, V2]: ...
    @overload
    def map_values_batch(
        self, function: Callable[[Any, Any], Iterable[V2]], **options: Unpack[BatchWithKey]
    ) -> KStream[K, V2]: ...
    def map_values_batch(
        self,
        function: Callable[..., Any],
        *,
        as_: Form = "list",
        max_records: int = 256,
        max_wait: Duration = "50ms",
        with_key: bool = False,
        name: str | None = None,
    ) -> Any:
        """Replace the values of many records at once: `function` gets up to `max_records` and returns as many.

        It gets them in order, as a list, or as `as_` says: a "numpy" array, a "pandas" Series, an "arrow" array; it
        returns a list or any of these, with the values in the same order. So a model, numpy or a look-up of many keys
        is called once, not once a record. With `with_key=True` it gets the keys first, in the same form.

        It is called when there are `max_records`, when the first one has waited for `max_wait` of the wall clock,
        before a commit, and before anything that is due by stream time. So results are those of `map_values` with a
        function of one value, but for some timers, which the page on the DSL names. A batch that raises an error is
        halved until the records at fault are alone, which `processing_handler` decides about; so the function should
        have no effects of its own. Raises TopologyError, and MissingPackageError without the package of `as_`.
        """
        verb = "map_values_batch"
        arguments = ("keys", "values") if with_key else ("values",)
        check_function(verb, function, *arguments)
        options = {"function": function, "with_key": with_key, **check_batch(verb, as_, max_records, max_wait)}
        serdes = Serdes(self.flow.serdes.key)
        return self._processed("KSTREAM-MAPVALUESBATCH-", name, MapValuesBatch, options, serdes, changes_value=True)

    @overload
    def flat_map(
        self, function: Callable[[V], Iterable[tuple[K2, V2]]], **options: Unpack[WithoutKey]
    ) -> KStream[K2, V2]: ...
    @overload
    def flat_map(
        self, function: Callable[[K, V], Iterable[tuple[K2, V2]]], **options: Unpack[WithKey]
    ) -> KStream[K2, V2]: ...
    def flat_map(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Replace each record by any number of (key, value) pairs."""
        options = check_mapper("flat_map", function, with_key=with_key, may_generate=True)
        return self._processed(
            "KSTREAM-FLATMAP-", name, FlatMap, options, Serdes(), changes_key=True, changes_value=True
        )

    @overload
    def flat_map_values(
        self, function: Callable[[V], Iterable[V2]], **options: Unpack[WithoutKey]
    ) -> KStream[K, V2]: ...
    @overload
    def flat_map_values(
        self, function: Callable[[K, V], Iterable[V2]], **options: Unpack[WithKey]
    ) -> KStream[K, V2]: ...
    def flat_map_values(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Replace each record by one for each value that `function` returns; a text or bytes is refused as a list."""
        options = check_mapper("flat_map_values", function, with_key=with_key, may_generate=True)
        serdes = Serdes(self.flow.serdes.key)
        return self._processed("KSTREAM-FLATMAPVALUES-", name, FlatMapValues, options, serdes, changes_value=True)

    @overload
    def select_key(self, function: Callable[[V], K2], **options: Unpack[WithoutKey]) -> KStream[K2, V]: ...
    @overload
    def select_key(self, function: Callable[[K, V], K2], **options: Unpack[WithKey]) -> KStream[K2, V]: ...
    def select_key(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> Any:
        """Replace each key by what `function` returns."""
        options, serdes = check_mapper("select_key", function, with_key=with_key), Serdes(value=self.flow.serdes.value)
        return self._processed("KSTREAM-KEY-SELECT-", name, SelectKey, options, serdes, changes_key=True)

    @overload
    def with_timestamp(self, function: Callable[[V], int], **options: Unpack[WithoutKey]) -> KStream[K, V]: ...
    @overload
    def with_timestamp(self, function: Callable[[K, V], int], **options: Unpack[WithKey]) -> KStream[K, V]: ...
    @overload
    def with_timestamp(self, function: Callable[[Record], int], **options: Unpack[OfRecord]) -> KStream[K, V]: ...
    def with_timestamp(
        self,
        function: Callable[..., int],
        *,
        with_key: bool = False,
        with_record: bool = False,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Replace each timestamp by what `function` returns: an int of 0 or more, milliseconds since the epoch.

        It gets the value, with `with_key=True` the key first, with `with_record=True` the Record in their place. Verbs
        behind, and topics, have the new timestamp; the stream time of the task stays that of its inputs. Where a whole
        topic has its times in its values, `timestamp_extractor` of `builder.stream` also orders the inputs by them.
        A record for which `function` returns something else is a failed record (ProcessingError).

        >>> from penstock.dsl import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", value_serde="json").with_timestamp(lambda row: row["at"]).to("out", value_serde="json")
        >>> from penstock.testing import TopologyTestDriver
        >>> with TopologyTestDriver(builder) as driver:
        ...     driver.pipe("in", "anna", {"at": 5_000}, timestamp=9_000)
        ...     driver.read("out").timestamp
        5000
        """
        options = check_of_record("with_timestamp", function, with_key=with_key, with_record=with_record)
        return self._processed("KSTREAM-WITHTIMESTAMP-", name, WithTimestamp, options, self.flow.serdes)

    @overload
    def with_headers(self, function: Callable[[V], HeadersLike], **options: Unpack[WithoutKey]) -> KStream[K, V]: ...
    @overload
    def with_headers(self, function: Callable[[K, V], HeadersLike], **options: Unpack[WithKey]) -> KStream[K, V]: ...
    @overload
    def with_headers(self, function: Callable[[Record], HeadersLike], **options: Unpack[OfRecord]) -> KStream[K, V]: ...
    def with_headers(
        self,
        function: Callable[..., HeadersLike],
        *,
        with_key: bool = False,
        with_record: bool = False,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Replace the headers of each record by those that `function` returns.

        These are pairs of a name and bytes (or None), in which names may repeat, or a mapping. `function` gets the
        value, with `with_key=True` the key first, with `with_record=True` the Record in their place; so
        `lambda record: (*record.headers, ("source", b"web"))` adds a header. A record for which it returns something
        else is a failed record (ProcessingError).

        >>> from penstock.dsl import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("in").with_headers(lambda value: {"length": b"%d" % len(value)}).to("out")
        >>> from penstock.testing import TopologyTestDriver
        >>> with TopologyTestDriver(builder) as driver:
        ...     driver.pipe("in", "anna", "to be", timestamp=0)
        ...     driver.read("out").headers
        (('length', b'5'),)
        """
        options = check_of_record("with_headers", function, with_key=with_key, with_record=with_record)
        return self._processed("KSTREAM-WITHHEADERS-", name, WithHeaders, options, self.flow.serdes)

    # ------------------------------------------------------------------ side effects

    @overload
    def peek(self, function: Callable[[V], Any], **options: Unpack[WithoutKey]) -> KStream[K, V]: ...
    @overload
    def peek(self, function: Callable[[K, V], Any], **options: Unpack[WithKey]) -> KStream[K, V]: ...
    def peek(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> KStream[K, V]:
        """Call `function` for each record, which stays as it is. It is called again for what is processed again."""
        options = check_mapper("peek", function, with_key=with_key)
        return self._processed("KSTREAM-PEEK-", name, Peek, options, self.flow.serdes)

    @overload
    def foreach(self, function: Callable[[V], Any], **options: Unpack[WithoutKey]) -> None: ...
    @overload
    def foreach(self, function: Callable[[K, V], Any], **options: Unpack[WithKey]) -> None: ...
    def foreach(self, function: Callable[..., Any], *, with_key: bool = False, name: str | None = None) -> None:
        """Call `function` for each record; the stream ends here."""
        options = check_mapper("foreach", function, with_key=with_key)
        self._processed("KSTREAM-FOREACH-", name, Peek, {**options, "is_last": True}, self.flow.serdes)

    def print(
        self,
        *,
        label: str | None = None,
        text: Callable[[K, V], str] | None = None,
        file: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        """Print each record, as `[label]: key, value` or as `text` returns it; on Spark, to the logs of its workers.

        With `file`, append the lines to this file, of the machine that runs the task; a path that is not absolute is in
        the directory in which the program is written. Semantics: Kafka Streams' Printed.
        """
        if text is not None:
            check_function("print", text, "key", "value")
        options: dict[str, Any] = {"label": label or self.flow.step.name, "function": text}
        if file is not None:
            if not isinstance(file, (str, Path)) or not str(file):
                raise TopologyError(f"print: file: expected the path of a file, found {file!r}")
            options["file"] = str(Path(file).absolute())
        self._processed("KSTREAM-PRINTER-", name, Printer, options, self.flow.serdes)

    # ------------------------------------------------------------------ several streams

    def merge(self, *others: KStream[K, V], name: str | None = None) -> KStream[K, V]:
        """Return the records of this stream and of others, in the order in which the task processes them."""
        merged: Any = self
        for number, other in enumerate(others):
            if not isinstance(other, StreamBase):
                hint = "; go on with its updates: table.to_stream()" if hasattr(other, "to_stream") else ""
                hint = "; write merge(one, other)" if isinstance(other, (list, tuple)) else hint
                raise TopologyError(f"merge: expected a KStream, found {found(other)}{hint}")
            check_same_program("merge", self, other)
            merged = merged._merged_with(other, name if number == len(others) - 1 else None)
        if not others:
            raise TopologyError("merge: expected at least one other stream")
        made: KStream[K, V] = merged
        return made

    def _merged_with(self, other: StreamBase[K, V], name: str | None) -> Any:
        step = ProcessorStep(self.recorder.names.step("KSTREAM-MERGE-", name), PassThrough)
        step.is_merge = True
        one, two = self.flow, other.flow
        self.recorder.add(step, one.step, two.step)
        serdes = one.serdes.common(two.serdes)
        # A key that two serdes write in different ways is in two partitions.
        needs = one.needs_repartition or two.needs_repartition
        needs = needs or different_keys("merge", one.serdes.key, two.serdes.key) is not None
        return self._stream_of(Flow(step, serdes, one.sources | two.sources, needs))

    def split(self, *, name: str | None = None) -> BranchedKStream[K, V]:
        """Begin to split into branches: `.branch(predicate, NAME)` for each, then `.default()` or `.no_default()`.

        A record goes to the first branch whose predicate accepts it. Nodes are named `name` with the branch's name.
        """
        return BranchedKStream(self, name)

    @overload
    def branch(
        self, branches: Mapping[str, Callable[[V], Any]], *, default: str | None = None, **options: Unpack[WithoutKey]
    ) -> dict[str, KStream[K, V]]: ...
    @overload
    def branch(
        self, branches: Mapping[str, Callable[[K, V], Any]], *, default: str | None = None, **options: Unpack[WithKey]
    ) -> dict[str, KStream[K, V]]: ...
    def branch(
        self,
        branches: Mapping[str, Callable[..., Any]],
        *,
        default: str | None = None,
        with_key: bool = False,
        name: str | None = None,
    ) -> dict[str, KStream[K, V]]:
        """Split into a stream for each predicate, and return the streams by name.

        A record goes to the first branch whose predicate accepts it, the others to the branch named `default`, if there
        is one.
        """
        if not isinstance(branches, Mapping):
            raise TopologyError(
                f"branch: expected predicates by the names of their branches, found {branches!r}; write "
                "branch({NAME: PREDICATE, ...})"
            )
        if not branches:
            raise TopologyError("branch: expected at least one predicate, by the name of its branch")
        split = self.split(name=name)
        for each, predicate in branches.items():
            split.branch(predicate, each, with_key=with_key)  # type: ignore[call-overload]
        return split.no_default() if default is None else split.default(default)


class KStream(Stateless[K, V], Stateful[K, V]):
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
        options = check_mapper("group_by", function, with_key=with_key)
        serdes = Serdes(None, self.flow.serdes.value).given(key_serde, value_serde)
        selected = self._processed("KSTREAM-KEY-SELECT-", name, SelectKey, options, serdes, changes_key=True)
        return self.recorder.kinds.grouped_stream(self.recorder, selected.flow, name)

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
