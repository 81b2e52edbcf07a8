"""The verbs that join a stream with another stream or with a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock import (
    AnySink,
    KeyPart,
    Partitioner,
    Processor,
    StoreBuilder,
    TopicChooser,
    TopologyError,
    ValueTransformer,
)
from penstock.program.checks import check_class
from penstock.program.external_sink import sink_of
from penstock.program.serdes import SerdeLike
from penstock.support.names import timer_store_name

from .base import K, StreamBase, V
from .graph.functions import check_function, check_options, check_same_program, checked_stores
from .graph.materialized import materialized
from .graph.options import (
    SerdeOptions,
    StoreLike,
    StoreOptions,
    StreamJoinOptions,
    StreamJoinWithKey,
    StreamJoinWithoutKey,
    TableJoinOptions,
    TableJoinWithKey,
    TableJoinWithoutKey,
    WithBothKeys,
    WithKey,
    WithoutKey,
)
from .graph.serdes import Default, Serdes, check_same_keys
from .graph.sources import ExternalSinkStep, RepartitionNames, RepartitionStep, SinkStep, repartition_names
from .graph.step import Flow, ProcessorStep
from .missing_verbs import Verbs, found
from .operators.join_windows import JoinWindows
from .operators.joins import INNER, LEFT, OUTER, Joiner, JoinKind, TableSide
from .operators.reading import TopicTable
from .operators.stream_join import record_stream_join
from .operators.table_join import record_global_table_join, record_table_join
from .operators.table_store import TableUpdates
from .operators.user_step import FixedKey, UserStep

if TYPE_CHECKING:
    from .base import GlobalKTable
    from .stream import KStream
    from .table import KTable


Stores = Sequence[str | StoreBuilder]


class Output(StreamBase[K, V]):
    """Topics and processors."""

    def to(
        self,
        topic: str | TopicChooser,
        *,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        partitioner: Partitioner | None = None,
        partition_by: KeyPart | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to `topic`, or to the topic that a function of (record, metadata) returns for each.

        Serdes are the stream's as far as they are known, else the application's. `partition_by`, a function of the
        key, returns the part of it that chooses the partition; without it that is the whole key, and of a windowed key
        the key without its window. `partitioner` chooses it in another way.
        """
        if not isinstance(topic, str):
            check_function("to", topic, "record", "metadata", what="topic or function")
        node, serdes = self.recorder.names.step("KSTREAM-SINK-", name), self.flow.serdes.given(key_serde, value_serde)
        self.recorder.add(SinkStep(node, topic, serdes, partitioner, partition_by), self.flow.step)

    def to_sink(
        self,
        sink: AnySink | str,
        name: str,
        *,
        partitions: int | None = None,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        partition_by: KeyPart | None = None,
        **options: Any,
    ) -> None:
        """Write the records to a target outside of the log, each exactly once: `sink`, or the installed one of a name.

        They go through a topic of the application's own, `NAME-repartition`, and tasks of their own write them: what is
        committed there is written, also after a crash, and a target that is away delays nothing else. A stream of one
        topic that no other verb uses is written without a topic between. Records of a key keep their order. `name` is
        also that of the position in the target: keep it. `partitions` and `partition_by` as in `repartition`, serdes
        as in `to`; `options` are arguments of an installed sink.
        """
        if not isinstance(name, str):
            raise TopologyError(f"to_sink: expected a name for the node and its position in the target, found {name!r}")
        made = sink_of(f"to_sink {name!r}", sink, options)
        node, serdes = self.recorder.names.step("KSTREAM-SINK-", name), self.flow.serdes.given(key_serde, value_serde)
        self.recorder.add(ExternalSinkStep(node, made, serdes, partitions, partition_by), self.flow.step)

    def repartition(
        self,
        name: str | None = None,
        *,
        partitions: int | None = None,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        partitioner: Partitioner | None = None,
        partition_by: KeyPart | None = None,
    ) -> KStream[K, V]:
        """Send the records through a topic of the application's own, `NAME-repartition`, and continue behind it.

        `partitions` None takes the largest count among the topics that lead to it. Records without a key are dropped.
        `partitioner` and `partition_by` as in `to`.
        """
        base = self.recorder.names.unless_given(name, "KSTREAM-REPARTITION-")
        return self._repartitioned(
            base,
            self.flow.serdes.given(key_serde, value_serde),
            how='repartition("NAME")',
            may_merge=False,
            partitions=partitions,
            partitioner=partitioner,
            partition_by=partition_by,
        )

    def _repartitioned(self, base: str, serdes: Serdes, *, how: str, **options: Any) -> KStream[K, V]:
        """Return this stream behind a repartition topic that is named after `base`."""
        step = RepartitionStep(repartition_names(self.recorder.names, base, how), serdes, **options)
        self.recorder.add(step, self.flow.step)
        # In the topic, a key that a function made has the application's serde.
        known = serdes.else_of(Serdes(Default.TOPIC))
        return self._stream_of(Flow(step, known, frozenset({step.name})))

    # ------------------------------------------------------------------ processors

    def process(
        self,
        supplier: Callable[..., Processor] | str,
        *,
        stores: Stores = (),
        name: str | None = None,
        **options: Any,
    ) -> KStream[Any, Any]:
        """Process the records with a Processor: a class, a factory, or the name of an installed one.

        `stores` are stores it uses, declared or by name; `options` are the arguments of the supplier. It may change
        keys.
        """
        return self._user_processor("process", name, supplier, stores, options, Serdes(), supplier)

    def process_values(
        self,
        supplier: Callable[..., ValueTransformer | Processor] | str,
        *,
        stores: Stores = (),
        name: str | None = None,
        **options: Any,
    ) -> KStream[K, Any]:
        """Process the records with a ValueTransformer, or with a Processor that keeps keys as they are; see `process`.

        A Processor that forwards another key is an error at that record.
        """
        code = supplier
        if isinstance(supplier, type) and issubclass(supplier, Processor):
            check_class("process_values", supplier)
            timers = None if supplier.on_timer is Processor.on_timer else True
            options = {"transformer": supplier, "arguments": options, "timers": timers}
            supplier = FixedKey
        serdes = Serdes(self.flow.serdes.key)
        return self._user_processor("process_values", name, supplier, stores, options, serdes, code)

    def _user_processor(
        self,
        verb: str,
        name: str | None,
        supplier: Any,
        stores: Stores,
        options: dict[str, Any],
        serdes: Serdes,
        code: Any,
    ) -> KStream[Any, Any]:
        connected, keeps_key = checked_stores(stores), verb == "process_values"
        node = self.recorder.names.unless_given(name, "KSTREAM-PROCESSVALUES-" if keeps_key else "KSTREAM-PROCESSOR-")
        if name is None:  # its timers are state with a numbered name, too
            self.recorder.names.generated[timer_store_name(node)] = f'{verb}(..., name="NAME")'
        step = UserStep(
            node,
            supplier,
            options,
            code=code,
            is_named=name is not None,
            stores=lambda writer: connected,
            changes_key=not keeps_key,
            changes_value=True,
        )
        return self._stream(step, serdes)

    def to_table(
        self, store: StoreLike | None = None, *, name: str | None = None, **options: Unpack[StoreOptions]
    ) -> KTable[K, V]:
        """Return the table of the latest value of each key; a record without a value deletes its key.

        Records without a key are dropped. If a verb before may have changed keys, records go through a repartition
        topic, `NAME-repartition`. `store` is the name of the table's store, or a declared store; without it, the table
        gets a store only if a verb needs one. Semantics: Kafka Streams' KStream.toTable.
        """
        names = self.recorder.names
        step = ProcessorStep(names.step("KSTREAM-TOTABLE-", name), TableUpdates, {"store": None, "sends_old": False})
        kept = materialized("to_table", names, store, options, "KSTREAM-TOTABLE-")
        serdes = kept.serdes(self.flow.serdes)
        flow = self.flow
        if flow.needs_repartition:
            flow = self._repartitioned(step.name, serdes, how='to_table(name="NAME")').flow
            serdes = Serdes(flow.serdes.key, serdes.value)
        self.recorder.add(step, flow.step)
        table, flow = TopicTable(step, kept, serdes), Flow(step, serdes, flow.sources)
        made: KTable[K, V] = self.recorder.kinds.table(self.recorder, flow, table, kept.own_name)
        return made


K2 = TypeVar("K2")
V2 = TypeVar("V2")
R = TypeVar("R")


class Joining(Output[K, V]):
    """Joins. A joiner is a function of (left, right); with `with_key=True` it gets the key first.

    For joins with a global table, `with_both_keys=True` gives it the record's key and the row's.
    """

    _repartitioned_for_join: KStream[K, V] | None = None

    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2], R],
        window: JoinWindows,
        **options: Unpack[StreamJoinWithoutKey],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2], R],
        window: JoinWindows,
        **options: Unpack[StreamJoinWithKey],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self, other: KTable[K, V2], joiner: Callable[[V, V2], R], **options: Unpack[TableJoinWithoutKey]
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self, other: KTable[K, V2], joiner: Callable[[K, V, V2], R], **options: Unpack[TableJoinWithKey]
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[Any, V2],
        joiner: Callable[[V, V2], R],
        *,
        select_key: Callable[[V], Any] | None = None,
        **options: Unpack[WithoutKey],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[Any, V2],
        joiner: Callable[[K, V, V2], R],
        *,
        select_key: Callable[[K, V], Any] | None = None,
        **options: Unpack[WithKey],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[K2, V2],
        joiner: Callable[[K, K2, V, V2], R],
        *,
        select_key: Callable[[K, V], K2 | None] | None = None,
        **options: Unpack[WithBothKeys],
    ) -> KStream[K, R]: ...
    def join(self, other: Any, joiner: Callable[..., Any], window: Any = None, **options: Any) -> Any:
        """Join with the records of another stream, with a table, or with a global table.

        With a stream: each record with those of the same key of the other stream that are near in time. `window` says
        how near; see `within`.

        The result's timestamp is the later one of the two records, its headers are the later arrival's.
        Records without a key or a value are dropped, and those that are later than the window and its grace.

        >>> from penstock.dsl import StreamsBuilder, within
        >>> from penstock.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> clicks, views = builder.stream("clicks"), builder.stream("views")
        >>> both = clicks.join(views, lambda click, view: f"{view}, {click}", within("10s", grace="0s"), name="both")
        >>> both.to("both")
        >>> with TopologyTestDriver(builder) as driver:
        ...     driver.pipe("views", "anna", "shoes", 1_000)
        ...     driver.pipe("clicks", "anna", "buy", 9_000)
        ...     driver.pipe("clicks", "anna", "help", 12_000)
        ...     [(record.value, record.timestamp) for record in driver.read_all("both")]
        [('shoes, buy', 9000)]

        `name` names the nodes, the stores (`NAME-this-join-store`, `NAME-other-join-store`) and the repartition topics
        (`NAME-left-repartition`, `NAME-right-repartition`).

        With a table: each record with the table's value for its key, as it is when the record is processed. Records
        that find none, and those without a key or a value, are dropped. Result and record have the same timestamp.
        A versioned table is read as of the record's time; with `grace`, the record also waits until the stream is so
        much past its time, for late updates of the table. `name` names the node and `NAME-repartition`.

        ::

            time      1        2        3        4
            table              a: x              a: y
            stream    a: 1              a: 2              a: 3
            result                      a: 2x             a: 3y

        With a global table: as with a table, but by the key that `select_key` makes of the record's value (with
        `with_key=True`, of key and value), and without a repartition topic. Without `select_key`, it is the record's
        own key. With `with_both_keys=True` the joiner is a function of (key, row_key, left, right): the record's key
        and the key by which the table was read. `select_key` gets key and value then, too.

        Semantics: Kafka Streams' KStream joins with KStream, KTable and GlobalKTable.
        """
        return self._joined(INNER, other, joiner, window, options)

    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2 | None], R],
        window: JoinWindows,
        **options: Unpack[StreamJoinWithoutKey],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        window: JoinWindows,
        **options: Unpack[StreamJoinWithKey],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self, other: KTable[K, V2], joiner: Callable[[V, V2 | None], R], **options: Unpack[TableJoinWithoutKey]
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self, other: KTable[K, V2], joiner: Callable[[K, V, V2 | None], R], **options: Unpack[TableJoinWithKey]
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[Any, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        select_key: Callable[[V], Any] | None = None,
        **options: Unpack[WithoutKey],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[Any, V2],
        joiner: Callable[[K, V, V2 | None], R],
        *,
        select_key: Callable[[K, V], Any] | None = None,
        **options: Unpack[WithKey],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[K2, V2],
        joiner: Callable[[K, K2 | None, V, V2 | None], R],
        *,
        select_key: Callable[[K, V], K2 | None] | None = None,
        **options: Unpack[WithBothKeys],
    ) -> KStream[K, R]: ...
    def left_join(self, other: Any, joiner: Callable[..., Any], window: Any = None, **options: Any) -> Any:
        """Join as `join` does, and keep left records that find no match: the joiner then gets None as the right value.

        With a stream, such a result comes once the join's stream time has passed the end of the window and its grace.
        It comes at once for a left record without a key (KIP-962), and for one that is late: whose window has passed
        when it comes, and has no match yet. Where it has waited, its headers are those of the record that closed the
        window, as in Kafka Streams; with `dsl_store_format="headers"` they are its own.

        With a table or a global table, such a result comes as the others do, also for a record without a key. A joiner
        with both keys gets None as the row's key where `select_key` returned it.
        Semantics: Kafka Streams' left joins of a KStream.
        """
        return self._joined(LEFT, other, joiner, window, options)

    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V | None, V2 | None], R],
        window: JoinWindows,
        **options: Unpack[StreamJoinWithoutKey],
    ) -> KStream[K, R]: ...
    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V | None, V2 | None], R],
        window: JoinWindows,
        **options: Unpack[StreamJoinWithKey],
    ) -> KStream[K, R]: ...
    def outer_join(self, other: Any, joiner: Callable[..., Any], window: Any = None, **options: Any) -> Any:
        """Join as `left_join` does, and keep right records that find no match, too: the left value is then None."""
        return self._joined(OUTER, other, joiner, window, options)

    # ------------------------------------------------------------------ parts

    def _joined(self, kind: JoinKind, other: Any, joiner: Callable[..., Any], window: Any, options: Any) -> Any:
        verb, kinds = kind.verb, self.recorder.kinds
        with_key, name = options.pop("with_key", False), options.pop("name", None)
        both_keys = options.pop("with_both_keys", False)
        if callable(window) and isinstance(other, kinds.global_table):
            raise TopologyError(
                f"{verb}: the joiner comes second here, and a function that selects the key is given by name (Kafka "
                f"Streams' order is another): write {verb}(table, JOINER, select_key=FUNCTION)"
            )
        if both_keys:
            _check_both_keys(verb, is_global=isinstance(other, kinds.global_table), with_key=with_key)
        keys = ("key", "row_key") if both_keys else ("key",) if with_key else ()
        check_function(verb, joiner, *keys, "left", "right", what="joiner")
        how = Joiner(joiner, with_key, both_keys)
        if isinstance(other, (Joining, kinds.table, kinds.global_table)):
            check_same_program(verb, self, other)
        if isinstance(other, Joining):
            made = self._joined_with_stream(kind, other, how, window, name, options)
        elif kind.keeps_right or not isinstance(other, (kinds.table, kinds.global_table)):
            expected = "KStream" if kind.keeps_right else "KStream, a KTable or a GlobalKTable"
            raise TopologyError(f"{verb}: expected a {expected}, found {found(other)}{_instead(other)}")
        elif window is not None:
            raise TopologyError(
                f"{verb}: a join with a table has no window, since a table has a value at each time; leave it out, or "
                "join the table's updates as a stream: table.to_stream()"
            )
        elif isinstance(other, kinds.table):
            made = self._joined_with_table(kind, other, how, name, options)
        else:
            select_key = options.pop("select_key", None)
            check_options(verb, options, ("select_key",))
            made = record_global_table_join(self.recorder, kind, self.flow, other.store, how, select_key, name)
        return kinds.stream(self.recorder, made)

    def _joined_with_stream(
        self, kind: JoinKind, other: Joining[Any, Any], joiner: Joiner, window: Any, name: str | None, options: Any
    ) -> Flow:
        if not isinstance(window, JoinWindows):
            raise TopologyError(
                f"{kind.verb}: a join of two streams needs a window, found {window!r}; write "
                f'{kind.verb}(other, joiner, within("10m", grace="1m"))'
            )
        check_options(kind.verb, options, StreamJoinOptions.__annotations__)
        left, right = self._flows(kind, other, name, options)
        return record_stream_join(self.recorder, kind, left, right, joiner, window, name, options)

    def _joined_with_table(self, kind: JoinKind, table: Any, joiner: Joiner, name: str | None, options: Any) -> Flow:
        grace = options.pop("grace", None)
        without = (*SerdeOptions.__annotations__, "grace")
        check_options(kind.verb, options, without if grace is None else TableJoinOptions.__annotations__)
        serdes = self.flow.serdes.given(options.get("key_serde"), options.get("value_serde"))
        check_same_keys(kind.verb, serdes.key, table.flow.serdes.key)
        serdes = serdes.else_of(Serdes(table.flow.serdes.key))
        flow = self.behind_repartition(name, serdes, how=f'{kind.verb}(..., name="NAME")')
        return record_table_join(
            self.recorder, kind, flow, TableSide(table.flow, table.source), joiner, grace, name, options
        )

    def _flows(
        self, kind: JoinKind, other: Joining[Any, Any], name: str | None, options: StreamJoinOptions
    ) -> tuple[Flow, Flow]:
        """Return both sides behind their repartition topics, where they need one, with the serdes of their stores."""
        key = options.get("key_serde")
        left = self.flow.serdes.given(key, options.get("value_serde"))
        right = other.flow.serdes.given(key, options.get("other_value_serde"))
        check_same_keys(kind.verb, left.key, right.key)
        left, right = left.else_of(Serdes(right.key)), right.else_of(Serdes(left.key))
        suffixed = [None if name is None else name + suffix for suffix in ("-left", "-right")]
        how = f'{kind.verb}(..., name="NAME")'
        return (
            self.behind_repartition(suffixed[0], left, how=how),
            other.behind_repartition(suffixed[1], right, how=how),
        )

    def behind_repartition(self, base: str | None, serdes: Serdes, *, how: str) -> Flow:
        """Return this stream, behind a repartition topic if it needs one, with all that is known of its serdes.

        The topic is named after `base`; `how` says how to choose that. For the verbs of the DSL.
        """
        behind: Any = self
        if self.flow.needs_repartition:
            behind = self._repartitioned_once(self.flow.step.name if base is None else base, serdes, how)
        return Flow(behind.flow.step, serdes.else_of(behind.flow.serdes), behind.flow.sources)

    def _repartitioned_once(self, base: str, serdes: Serdes, how: str) -> Any:
        """Return this stream behind a repartition topic; several joins without a name share one, as in Kafka Streams.

        They use up the numbers of its names nevertheless.
        """
        made = self._repartitioned_for_join
        if made is not None and base == self.flow.step.name:
            RepartitionNames.numbered(self.recorder.names, base)
            return made
        self._repartitioned_for_join = made = self._repartitioned(base, serdes, how=how)
        return made


def _check_both_keys(verb: str, *, is_global: bool, with_key: bool) -> None:
    if not is_global:
        raise TopologyError(
            f"{verb}: with_both_keys=True is for joins with a global table; in the others both sides have one key: "
            "write with_key=True"
        )
    if with_key:
        raise TopologyError(f"{verb}: with_key=True and with_both_keys=True: leave the first out")


def _instead(other: Any) -> str:
    """Return advice for a message: how to join an object that a stream cannot be joined with."""
    if hasattr(other, "to_stream"):
        return "; a stream with all sides kept is joined with its updates: table.to_stream()"
    if isinstance(other, Verbs):
        return "; join the stream before it is grouped, or the table of its aggregates: count()"
    return ""
