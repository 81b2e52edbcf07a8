"""Processors and stores that are used wrongly: the message, and that the run goes on from where it was."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    PenstockError,
    ProcessingError,
    Processor,
    ProductionError,
    Record,
    Retry,
    Topology,
    TopologyError,
    ValueTransformer,
    key_value_store,
    skip,
)

from .world import ORDERS, Contents, MakeWorld, Total, World, says, totals

WHERE = "application 'shop', task 0_0, node 'total', at topic 'orders' partition 0 offset 2: "
WAY_OUT = (
    "Mend it and start again: nothing since the last commit counts, and nothing is lost. Or set processing_handler"
)


class FailsInProcess(Total):
    """Changes the store and forwards before it raises: none of that may stay."""

    def process(self, record: Record) -> None:
        super().process(record)
        if record.value == "4":
            raise ZeroDivisionError("no price")


class FailsInTransform(ValueTransformer):
    def transform(self, key: Any, value: Any) -> Any:
        return {"3": "three", "5": "five"}[value]


class FailsInInit(Total):
    def init(self, context: Any) -> None:
        super().init(context)
        self.totals.put("ann", 1000)
        raise OSError("no price list")


class FailsInStreamTime(Total):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1ms", self.tick, STREAM_TIME)

    def tick(self, now: int) -> None:
        self.totals.put("ann", 1000)
        self.context.forward(Record("ann", "1000", now))
        if now >= 2:
            raise ZeroDivisionError("no price")


class FailsInWallClockTime(Total):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1ms", self.tick, WALL_CLOCK_TIME, start=context.current_system_time_ms())

    def tick(self, now: int) -> None:
        self.totals.put("ann", 1000)
        raise ZeroDivisionError("no price")


class ForwardsNoRecord(Total):
    def process(self, record: Record) -> None:
        super().process(record)
        if record.value == "4":
            self.context.forward((record.key, record.value))  # type: ignore[arg-type]


class ForwardsNoTimestamp(Total):
    def process(self, record: Record) -> None:
        if record.value == "4":
            self.context.forward(record.with_timestamp(2.5))  # type: ignore[arg-type]
        super().process(record)


class ForwardsTextHeader(Total):
    def process(self, record: Record) -> None:
        if record.value == "4":
            self.context.forward(record.with_headers((("from", "me"),)))  # type: ignore[arg-type]
        super().process(record)


class ForwardsNumber(Total):
    def process(self, record: Record) -> None:
        if record.value == "4":
            self.context.forward(record.with_value(4))
        super().process(record)


class ForwardsToNobody(Total):
    def process(self, record: Record) -> None:
        super().process(record)
        if record.value == "4":
            self.context.forward(record, to="totals-uot")


class StoresAnObject(Total):
    def process(self, record: Record) -> None:
        super().process(record)
        if record.value == "4":
            self.totals.put(record.key, object())


class StoresUnderNone(Total):
    def process(self, record: Record) -> None:
        super().process(record)
        if record.value == "4":
            self.totals.put(None, 1)


class SchedulesABareNumber(Total):
    def process(self, record: Record) -> None:
        super().process(record)
        if record.value == "4":
            self.context.schedule(10, print, STREAM_TIME)  # type: ignore[arg-type]


class Exits(Total):
    def process(self, record: Record) -> None:
        super().process(record)
        if record.value == "4":
            sys.exit(3)


FAILING: list[tuple[type[Processor | ValueTransformer], type[BaseException], list[str]]] = [
    (FailsInProcess, ProcessingError, [WHERE, "ZeroDivisionError: no price", WAY_OUT]),
    (FailsInTransform, ProcessingError, [WHERE, "KeyError: '4'", WAY_OUT]),
    (FailsInInit, ProcessingError, ["node 'total' in task 0_0: init raised OSError: no price list"]),
    (FailsInStreamTime, ProcessingError, ["task 0_0, node 'total', in a punctuator: ZeroDivisionError: no " "price", WAY_OUT]),
    (FailsInWallClockTime, ProcessingError, ["task 0_0, node 'total', in a punctuator: ZeroDivisionError: no " "price", WAY_OUT]),
    (
        ForwardsNoRecord, ProcessingError,
        [WHERE + "forwarded tuple ('ann', '4') to sink 'totals-out', expected a Record, for instance " "record.with_value(...)"],
    ),
    (ForwardsNoTimestamp, ProductionError, ["node 'totals-out' while producing to topic " "'totals-by-customer'", "the timestamp 2.5 is no int of milliseconds"]),
    (ForwardsTextHeader, ProductionError, ["node 'totals-out' while producing to topic " "'totals-by-customer'", "(('from', 'me'),)", "value as bytes or None"]),
    (ForwardsNumber, ProductionError, ["node 'totals-out' while producing", "serde 'str': expected str, found int 4; " "name a serde that fits", "Or set production_handler"]),
    (ForwardsToNobody, ProcessingError, [WHERE, "forwarding to 'totals-uot', which is not a child of this node; " "children: totals-out"]),
    (StoresAnObject, ProcessingError, [WHERE, "store 'totals': cannot write the value of ", "ann", "serde 'msgpack'", "or give the store or topic another serde"]),
    (StoresUnderNone, ProcessingError, [WHERE, "store 'totals': a key of None; drop records without a key, or give " "them one"]),
    (SchedulesABareNumber, ProcessingError, [WHERE, "node 'total': punctuation interval: expected a timedelta or " "text", '"10s"', "found 10"]),
    (Exits, ProcessingError, [WHERE, "it called sys.exit(3), which ends the run: no handler was asked", "Raise an error for a bad record"]),
]  # fmt: skip


@pytest.mark.parametrize(("processor", "error", "parts"), FAILING, ids=[case[0].__name__ for case in FAILING])
def test_what_a_processor_raises_is_told_and_undone(
    world: World, undisturbed: Contents, processor: Any, error: type[BaseException], parts: list[str]
) -> None:
    world.change(totals(processor))
    with pytest.raises(error) as caught:
        world.run(wall_clock_ms=10)
    says(caught.value, *parts)
    world.change(totals())
    world.run()
    found = world.contents()
    if processor is FailsInStreamTime:  # what it did at 0 and 1 ms was committed before it failed
        assert [key for key, _ in found.stores["0_0", "totals"]] == ["ann", "bob"]
        assert found.positions == undisturbed.positions
        assert len(found.topics["totals-by-customer", 0]) == len(undisturbed.topics["totals-by-customer", 0]) + 2
    else:
        assert found == undisturbed


@pytest.mark.parametrize("processor", [FailsInProcess, StoresUnderNone, ForwardsToNobody])
def test_a_failed_record_can_be_skipped(world: World, processor: Any) -> None:
    """What the processor did before it raised stays, as the handler's contract says."""
    world.change(totals(processor), processing_handler=skip)
    assert sum(report.dropped for report in world.run()) == 1
    assert world.contents().stores == {("0_0", "totals"): [("ann", 16), ("bob", 7)], ("0_1", "totals"): [("dan", 1)]}


def test_a_failure_that_passes_is_tried_again_from_the_commit(world: World, undisturbed: Contents) -> None:
    attempts = itertools.count(1)

    class FailsTwice(Total):
        def process(self, record: Record) -> None:
            super().process(record)
            if record.value == "4" and next(attempts) <= 2:
                raise ConnectionError("not there yet")

    world.change(totals(FailsTwice), processing_handler=Retry(attempts=3, delay="5m"))
    world.run()
    assert world.contents() == undisturbed
    assert next(attempts) == 4


def test_a_close_that_raises_is_a_warning(
    world: World, undisturbed: Contents, caplog: pytest.LogCaptureFixture
) -> None:
    class FailsInClose(Total):
        def close(self) -> None:
            raise OSError("already gone")

    world.change(totals(FailsInClose))
    world.run()
    says(caplog.text, "task 0_0, node 'total': close raised OSError: already gone")
    world.change(totals())
    assert world.contents() == undisturbed


# ---------------------------------------------------------------- suppliers


def not_a_processor() -> Any:
    return "total"


def no_price_list() -> Processor:
    raise FileNotFoundError("prices.csv")


ONE = Total()

SUPPLIERS: list[tuple[str, Any, list[str]]] = [
    ("returns something else", not_a_processor, ["processor 'total'", "its supplier made 'total', which is neither a " "Processor nor a ValueTransformer"]),
    ("raises", no_price_list, ["processor 'total'", "its supplier raised FileNotFoundError: prices.csv"]),
    ("returns one instance twice", lambda: ONE, ["processor 'total'", "same object twice", "each task needs an instance of its own"]),
    ("is an instance", ONE, ["processor 'total'", "found one instance of Total", "pass the class"]),
    ("is another class", dict, ["processor 'total'", "class dict is neither a Processor nor a ValueTransformer; " "derive it from one"]),
    ("is abstract", Processor, ["processor 'total'", "class Processor is abstract; write its method process"]),
    ("is no function", 7, ["processor 'total'", "expected a class, a factory or the name of an installed processor, " "found 7"]),
]  # fmt: skip


@pytest.mark.parametrize(("supplier", "parts"), [case[1:] for case in SUPPLIERS], ids=[case[0] for case in SUPPLIERS])
def test_a_wrong_supplier_is_refused_when_it_is_named(supplier: Any, parts: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        totals(supplier)
    says(caught.value, *parts)


@pytest.mark.parametrize(
    ("later", "parts"),
    [
        (no_price_list, ["node 'total'", "making its processor", "FileNotFoundError: prices.csv"]),
        (not_a_processor, ["node 'total'", "its supplier made a str, expected a Processor or ValueTransformer"]),
    ],
)
def test_a_supplier_that_is_wrong_only_where_it_runs(
    world: World, undisturbed: Contents, later: Any, parts: list[str]
) -> None:
    made = itertools.count()

    def supplier() -> Any:
        return Total() if next(made) < 2 else later()

    world.change(totals(supplier))
    with pytest.raises(TopologyError) as caught:
        world.run()
    says(caught.value, *parts)
    world.change(totals())
    world.run()
    assert world.contents() == undisturbed


# ---------------------------------------------------------------- stores


def asking(store: str) -> type[Processor]:
    class Asking(Total):
        def init(self, context: Any) -> None:
            super().init(context)
            context.get_store(store)

    return Asking


def with_neighbour(processor: Any) -> Topology:
    """`totals` and a processor beside it with a store of its own."""
    return totals(processor).add_processor(
        "history", Total, "orders", stores=[key_value_store("totals"), key_value_store("history")]
    )


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        (
            lambda: with_neighbour(asking("history")),
            ["node 'total' is not connected to store 'history'", "topology.connect('total', 'history'), or " "add_processor(..., stores=['history'])"],
        ),
        (
            lambda: totals(asking("totls")),
            ["node 'total' asks for store 'totls', which it is not connected to; connected: " "totals", "topology.add_store(key_value_store('totls'), 'total')"],
        ),
    ],
    ids=["another node's", "undeclared"],
)  # fmt: skip
def test_a_store_that_a_node_may_not_use(world: World, undisturbed: Contents, program: Any, parts: list[str]) -> None:
    world.change(program())
    with pytest.raises(TopologyError) as caught, world.workers() as (log, workers):
        workers[0].run_batch(log.end_offsets(workers[0].partitions), 0)
    says(caught.value, *parts)
    if "history" in str(caught.value):
        return  # once the larger program has run, the smaller one no longer fits, see test_lost
    world.change(totals())
    world.run()
    assert world.contents() == undisturbed


def test_a_store_that_is_not_in_the_topology() -> None:
    topology = Topology().add_source("orders", "orders").add_processor("total", Total, "orders", stores=["totls"])
    topology.add_store(key_value_store("totals"), "total")
    with pytest.raises(TopologyError) as caught:
        topology.build()
    says(
        caught.value,
        "processor 'total' is connected to store 'totls', which is not in the topology",
        "add_store",
        "did you mean 'totals'?",
    )


def test_a_store_that_nobody_connects() -> None:
    topology = (
        Topology()
        .add_source("orders", "orders")
        .add_processor("total", Total, "orders")
        .add_store(key_value_store("totals"))
    )
    with pytest.raises(TopologyError) as caught:
        topology.build()
    says(
        caught.value,
        "store 'totals' is connected to no processor",
        "add_processor(..., stores=['totals'])",
        "connect(PROCESSOR, 'totals')",
    )


def test_a_store_connected_to_a_processor_that_is_not_there() -> None:
    with pytest.raises(TopologyError) as caught:
        totals().add_store(key_value_store("more"), "totl")
    says(
        caught.value,
        "store 'more' cannot be connected to 'totl': there is no such processor yet",
        "did you mean 'total'?",
    )


def test_a_global_store_may_only_be_read(make_world: MakeWorld) -> None:
    class Fill(Processor):
        def process(self, record: Record) -> None:
            self.context.get_store("prices").put(record.key, record.value)

    class Change(Processor):
        def process(self, record: Record) -> None:
            prices = self.context.get_store("prices")
            self.context.forward(record.with_value(prices.get(record.key)))
            if record.value == "4":
                prices.put(record.key, "0")

    topology = Topology().add_global_store(key_value_store("prices"), "prices-in", "prices", "fill", Fill)
    topology.add_source("orders", "orders").add_processor("total", Change, "orders").add_sink(
        "out", "totals-by-customer", "total"
    )
    world = make_world(topology)
    world.produce("prices", ("ann", "10"), ("bob", "20"), ("dan", "30"))
    world.produce("orders", *ORDERS)
    with pytest.raises(PenstockError) as caught:
        world.run()
    says(
        caught.value,
        WHERE.replace("0_0", "1_0"),
        "store 'prices' is a global store: only its own processor may write it",
        WAY_OUT,
    )
    world.change(processing_handler=skip)
    world.run()
    rows = world.contents().topics["totals-by-customer", 0]
    assert [row[:2] for row in rows] == [
        (b"ann", b"10"),
        (b"bob", b"20"),
        (b"ann", b"10"),
        (b"bob", b"20"),
        (b"ann", b"10"),
    ]


def test_what_is_no_record_is_told_at_the_child_that_got_it(world: World, undisturbed: Contents) -> None:
    class Look(Processor):
        def process(self, record: Record) -> None:
            assert record.value

    world.change(totals(ForwardsNoRecord).add_processor("look", Look, "total"))
    with pytest.raises(ProcessingError) as caught:
        world.run()
    says(caught.value, "forwarded tuple ('ann', '4')", "expected a Record, for instance record.with_value(...)")
    world.change(totals())
    world.run()
    assert world.contents() == undisturbed
