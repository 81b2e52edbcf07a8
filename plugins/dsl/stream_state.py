"""The verbs that keep a state for each key of a stream, and that connect two streams to one processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from penstock import ProcessorContext, Record, TopologyError
from penstock.support.names import timer_store_name

from .base import K, V
from .graph.functions import check_function, check_initializer, check_same_program, checked_stores
from .graph.materialized import materialized
from .graph.options import StateOptions, StateWithKey, StateWithoutKey, StoreLike
from .graph.serdes import Default, Serdes, check_same_keys
from .graph.step import Flow, ProcessorStep
from .missing_verbs import Verbs, found
from .operators.connected import Connected, ConnectedStep, ConnectedWithTimers, From
from .operators.stateful_map import StatefulMap, state_store
from .stream_joins import Joining, Stores

if TYPE_CHECKING:
    from .stream import KStream

S = TypeVar("S")
V2 = TypeVar("V2")
R = TypeVar("R")


class Stateful(Joining[K, V]):
    """A mapper with state, and a processor of two streams."""

    @overload
    def stateful_map(
        self,
        function: Callable[[S, V], tuple[S | None, R]],
        initial: Callable[[], S],
        store: StoreLike | None = None,
        **options: Unpack[StateWithoutKey],
    ) -> KStream[K, R]: ...
    @overload
    def stateful_map(
        self,
        function: Callable[[K, S, V], tuple[S | None, R]],
        initial: Callable[[], S],
        store: StoreLike | None = None,
        **options: Unpack[StateWithKey],
    ) -> KStream[K, R]: ...
    def stateful_map(
        self,
        function: Callable[..., Any],
        initial: Callable[[], Any],
        store: StoreLike | None = None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Unpack[StateOptions],
    ) -> Any:
        """Replace each value by a result that also depends on a state of its key: `function(state, value)`.

        It returns (next state, result). With `with_key=True` it gets (key, state, value). `initial` makes the state
        that a key begins with; a next state of None is deleted, so the key begins anew. The function may change its
        state in place and return it, and the result may be a part of it: what is stored is what the state was when the
        function returned. Each record has one result, with its timestamp and headers; a result of None is a record
        without a value. A record without a value is given to the function as None, and one without a key is dropped
        and counted.

        `store` has the states as plain values, in the serde of the state (msgpack): a name, or a declared
        `key_value_store`. Its options are keyword arguments, such as `ttl`. If a verb before may have changed keys,
        records go through a repartition topic, `NAME-repartition`, named after `name` or the store.

        A result that is no pair makes a failed record (ProcessingError), and leaves the state as it was. Raises
        TopologyError for functions that cannot be called so, and for a store of another kind.

        >>> from penstock.dsl import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> readings = builder.stream("readings", value_serde="int")
        >>> changes = readings.stateful_map(lambda last, value: (value, value - last), lambda: 0, "last")
        >>> changes.to("changes", value_serde="int")
        >>> from penstock.testing import TopologyTestDriver
        >>> with TopologyTestDriver(builder) as driver:
        ...     for value in (5, 7, 4):
        ...         driver.pipe("readings", "oven", value)
        ...     driver.read_values("changes"), driver.store("last").get("oven")
        ([5, 2, -3], 4)
        """
        verb, names = "stateful_map", self.recorder.names
        check_function(verb, function, *(("key",) if with_key else ()), "state", "value")
        check_initializer(verb, initial, what="state")
        node = names.step("KSTREAM-STATEFULMAP-", name)
        kept = materialized(verb, names, store, options, "KSTREAM-STATEFULMAP-", StateOptions.__annotations__)
        if not kept.is_named:
            names.generated[kept.name] = f'{verb}(..., store="NAME")'
        flow = self.flow
        if flow.needs_repartition:
            how = f'{verb}(..., name="NAME"), or a name for the store'
            flow = self._repartitioned(name or kept.name, flow.serdes, how=how).flow
        serdes = kept.serdes(Serdes(flow.serdes.else_of(Serdes(Default.TOPIC)).key))
        arguments = {"function": function, "initial": initial, "store": kept.name, "with_key": with_key}
        step = ProcessorStep(
            node, StatefulMap, arguments, stores=lambda writer: (state_store(kept, writer, serdes),), changes_value=True
        )
        self.recorder.add(step, flow.step)
        return self._stream_of(Flow(step, Serdes(flow.serdes.key), flow.sources))

    def connect(self, other: KStream[K, V2]) -> ConnectedKStreams[K, V, V2]:
        """Connect with another stream of the same keys, to process both with shared state: `.process(...)`.

        Raises TopologyError for anything but a stream of the same builder whose keys have the same serde.
        """
        if not isinstance(other, Joining):
            hint = ""
            if hasattr(other, "to_stream"):
                hint = "; connect with its updates: table.to_stream()"
            raise TopologyError(f"connect: expected a KStream, found {found(other)}{hint}")
        check_same_program("connect", self, other)
        check_same_keys("connect", self.flow.serdes.key, other.flow.serdes.key, sides=SIDES)
        return ConnectedKStreams(self, other)


SIDES = ("the first stream", "the second stream")


class ConnectedKStreams(Verbs, Generic[K, V, V2]):
    """Two streams that one processor gets. Kafka Streams has no such verb; Flink's ConnectedStreams are the model."""

    kind = "connected streams"

    def __init__(self, first: Joining[K, V], second: Joining[K, V2]) -> None:
        self._first = first
        self._second = second

    def process(
        self,
        on_first: Callable[[Record, ProcessorContext], Any],
        on_second: Callable[[Record, ProcessorContext], Any],
        *,
        on_timer: Callable[[Any, int, ProcessorContext], Any] | None = None,
        stores: Stores = (),
        name: str | None = None,
    ) -> KStream[Any, Any]:
        """Process the records of the first stream with `on_first`, and those of the second with `on_second`.

        Both are functions of (record, context): a Record, and the context of a Processor, with its stores, timers and
        `forward`. `on_timer`, a function of (key, at, context), gets the timers that they set by `context.timer`.
        `stores` are stores that they use, declared or by name: both see the same ones. The task takes the records of
        both streams in the order of their timestamps, as in a join; where one record reaches both functions, no order
        is promised. They may change keys. They cannot set schedules, which need the `init` of a Processor.

        Records with equal keys meet in one task: both topics need equal numbers of partitions, which is checked when
        the program starts. A stream whose keys a verb may have changed goes through a repartition topic,
        `NAME-first-repartition` or `NAME-second-repartition`. Name the node if it has timers: they are kept under its
        name.

        Raises TopologyError for functions that cannot be called so.

        >>> from penstock import WALL_CLOCK_TIME, key_value_store
        >>> from penstock.dsl import StreamsBuilder
        >>> def ordered(record, context):
        ...     context.get_store("open").put(record.key, record.value)
        >>> def paid(record, context):
        ...     item = context.get_store("open").get(record.key)
        ...     context.forward(record.with_value(f"{item} for {record.value}"))
        >>> builder = StreamsBuilder()
        >>> orders, payments = builder.stream("orders"), builder.stream("payments", value_serde="int")
        >>> sold = orders.connect(payments).process(ordered, paid, stores=[key_value_store("open")], name="match")
        >>> sold.to("sold", value_serde="str")
        >>> from penstock.testing import TopologyTestDriver
        >>> with TopologyTestDriver(builder) as driver:
        ...     driver.pipe("orders", "o-1", "tea", timestamp=0)
        ...     driver.pipe("payments", "o-1", 3, timestamp=1)
        ...     driver.read_values("sold")
        ['tea for 3']
        """
        verb = "connect(...).process"
        check_function(verb, on_first, "record", "context", what="on_first")
        check_function(verb, on_second, "record", "context", what="on_second")
        options: dict[str, Any] = {"on_first": on_first, "on_second": on_second}
        if on_timer is not None:
            check_function(verb, on_timer, "key", "at", "context", what="on_timer")
            options["timer_function"] = on_timer
        connected = checked_stores(stores)
        first, second, recorder = self._first, self._second, self._first.recorder
        flows = [
            each.behind_repartition(
                None if name is None else name + suffix,
                each.flow.serdes.else_of(Serdes(other.flow.serdes.key)),
                how=f'{verb}(..., name="NAME")',
            )
            for each, other, suffix in ((first, second, "-first"), (second, first, "-second"))
        ]
        inputs = [
            recorder.add(
                ProcessorStep(
                    recorder.names.suffixed(name, suffix, "KSTREAM-CONNECT-"), From, {"number": number},
                    changes_value=True,
                ),
                flow.step,
            )
            for number, (flow, suffix) in enumerate(zip(flows, ("-first", "-second"), strict=True))
        ]  # fmt: skip
        node = recorder.names.step("KSTREAM-CONNECTED-", name)
        if name is None and on_timer is not None:
            recorder.names.generated[timer_store_name(node)] = f'{verb}(..., name="NAME")'
        step = ConnectedStep(
            node,
            Connected if on_timer is None else ConnectedWithTimers,
            options,
            code=on_first,
            is_named=name is not None,
            keys=(flows[0].serdes.key, flows[1].serdes.key),
            stores=lambda writer: connected,
            changes_key=True,
            changes_value=True,
        )
        recorder.add(step, *inputs)
        sources = flows[0].sources | flows[1].sources
        recorder.copartition(sources)
        made: KStream[Any, Any] = recorder.kinds.stream(recorder, Flow(step, Serdes(), sources, needs_repartition=True))
        return made
