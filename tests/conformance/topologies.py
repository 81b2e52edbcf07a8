"""The topologies that the vectors name, built from a case's parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Processor, Record, Topology, ValueAndTimestamp, key_value_store
from penstock.store.kinds.session import session_store
from penstock.store.kinds.versioned import versioned_store
from penstock.store.kinds.window import window_store

from .store_commands import SessionCommands, VersionedCommands, WindowCommands, text

Params = dict[str, Any]
BUILDERS: dict[str, Callable[[Params], Topology]] = {}


def topology(build: Callable[[Params], Topology]) -> Callable[[Params], Topology]:
    BUILDERS[build.__name__] = build
    return build


def one_node(supplier: Any, *sources: str, stores: tuple[Any, ...] = (), **options: Any) -> Topology:
    return (
        Topology()
        .add_source("src", *(sources or ("in",)))
        .add_processor("p", supplier, "src", stores=stores, **options)
        .add_sink("sink", "out", "p")
    )


class Metadata(Processor):
    # The running number is the one thing in these topologies that Kafka's processor keeps in an attribute.
    def init(self, context: Any) -> None:
        super().init(context)
        self.number = 0

    def process(self, record: Record) -> None:
        context = self.context
        metadata = context.record_metadata
        assert metadata is not None
        value = (
            f"{metadata.topic}/{metadata.partition}/{metadata.offset} ts={record.timestamp} "
            f"st={context.current_stream_time_ms()} wall={context.current_system_time_ms()} {text(record.value)}"
        )
        number = (("n", str(self.number).encode()),)
        self.number += 1
        context.forward(record.with_value(value).with_headers(record.headers + number))


@topology
def papi_metadata(params: Params) -> Topology:
    return one_node(Metadata, "in", "in2")


class HeaderEcho(Processor):
    def process(self, record: Record) -> None:
        value = ";".join(f"{name}={'null' if data is None else data.decode()}" for name, data in record.headers)
        last = next((data for name, data in reversed(record.headers) if name == "a"), None)
        kept = tuple(header for header in record.headers if header[0] != "drop")
        self.context.forward(record.with_value(value).with_headers((*kept, ("last_a", last))))


@topology
def papi_headers(params: Params) -> Topology:
    return one_node(HeaderEcho)


class KeyValueCommands(Processor):
    def __init__(self, timestamped: bool) -> None:
        self.timestamped = timestamped

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_store("s")

    def shown(self, value: Any) -> str:
        return text(value) if value is None or not self.timestamped else f"{text(value.value)}@{value.timestamp}"

    def stored(self, value: Any, record: Record) -> Any:
        return ValueAndTimestamp(value, record.timestamp) if self.timestamped and value is not None else value

    def listed(self, entries: Any) -> str:
        with entries as rows:
            return "[" + ",".join(f"{key}={self.shown(value)}" for key, value in rows) + "]"

    def answer(self, record: Record) -> str:
        store, key = self.store, record.key
        command, *arguments = record.value.split(" ")
        if command == "put":
            store.put(key, self.stored(arguments[0], record))
        elif command == "pia":
            return self.shown(store.put_if_absent(key, self.stored(arguments[0], record)))
        elif command == "del":
            return self.shown(store.delete(key))
        elif command == "putnull":
            store.put(key, None)
        elif command == "putall":
            pairs = (pair.split("=") for pair in arguments[0].split(","))
            store.put_all([(name, self.stored(value, record)) for name, value in pairs])
        elif command == "get":
            return self.shown(store.get(key))
        elif command in ("range", "rrange"):
            low, high = (None if end == "*" else end for end in arguments)
            return self.listed(store.range(low, high) if command == "range" else store.reverse_range(low, high))
        elif command == "all":
            return self.listed(store.all())
        elif command == "rall":
            return self.listed(store.reverse_all())
        elif command == "prefix":
            return self.listed(store.prefix_scan(arguments[0]))
        else:
            raise ValueError(f"unknown command {record.value!r}")
        return "ok"

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(f"{record.value} -> {self.answer(record)}"))


@topology
def papi_kv_store(params: Params) -> Topology:
    timestamped = params["kind"] == "timestamped"
    store = key_value_store("s", key_serde="str", timestamped=timestamped)
    return one_node(KeyValueCommands, stores=(store,), timestamped=timestamped)


@topology
def papi_window_store(params: Params) -> Topology:
    store = window_store(
        "s",
        retention=f"{params['retention']}ms",
        window_size=f"{params['size']}ms",
        key_serde="str",
        retain_duplicates=params.get("dupes", False),
    )
    return one_node(WindowCommands, stores=(store,))


@topology
def papi_session_store(params: Params) -> Topology:
    store = session_store("s", retention=f"{params['retention']}ms", key_serde="str")
    return one_node(SessionCommands, stores=(store,))


@topology
def papi_versioned_store(params: Params) -> Topology:
    store = versioned_store("s", history_retention=f"{params['history']}ms", key_serde="str")
    return one_node(VersionedCommands, stores=(store,))


class Punctuating(Processor):
    def __init__(self, schedules: list[dict[str, Any]]) -> None:
        self.schedules = schedules

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("cnt")
        for schedule in self.schedules:
            self.add(schedule)

    def add(self, schedule: dict[str, Any]) -> None:
        context, fired = self.context, 0

        def fire(now: int) -> None:
            nonlocal fired
            fired += 1
            if schedule.get("flush"):
                for key, count in list(self.counts.all()):
                    context.forward(Record(key, count, now))
                    self.counts.delete(key)
            metadata = context.record_metadata
            value = (
                f"{fired} at={now} st={context.current_stream_time_ms()} wall={context.current_system_time_ms()} "
                f"topic={metadata.topic if metadata else '-'}"
            )
            context.forward(Record(f"tick-{schedule['name']}", value, now))
            if fired == schedule.get("cancel_after"):
                handle.cancel()

        clock = STREAM_TIME if schedule["type"] == "stream" else WALL_CLOCK_TIME
        handle = context.schedule(f"{schedule['interval']}ms", fire, clock, start=schedule.get("start"))

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.counts.put(record.key, (self.counts.get(record.key) or 0) + 1)


@topology
def papi_punctuate(params: Params) -> Topology:
    store = key_value_store("cnt", key_serde="str")
    return one_node(Punctuating, stores=(store,), schedules=params["schedules"])


class ByNumber(Processor):
    def process(self, record: Record) -> None:
        value = record.value
        if value is None:
            self.context.forward(record)
        elif value % 3 == 0:
            self.context.forward(record.with_timestamp(record.timestamp + 1000))
        else:
            self.context.forward(record, to="even" if value % 2 == 0 else "odd")


class Prefixed(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(self.context.node + text(record.value)))


@topology
def papi_forward_children(params: Params) -> Topology:
    return (
        Topology()
        .add_source("src", "in")
        .add_processor("p", ByNumber, "src")
        .add_processor("even", Prefixed, "p")
        .add_processor("odd", Prefixed, "p")
        .add_sink("s1", "out-even", "even")
        .add_sink("s2", "out-odd", "odd")
        .add_sink("s3", "out-all", ["even", "odd"])
    )


class Twice(Processor):
    def __init__(self, suffixes: tuple[str, str], prefix: str = "") -> None:
        self.suffixes, self.prefix = suffixes, prefix

    def process(self, record: Record) -> None:
        for suffix in self.suffixes:
            self.context.forward(record.with_value(self.prefix + text(record.value) + suffix))


@topology
def papi_depth_first(params: Params) -> Topology:
    return (
        Topology()
        .add_source("src", "in")
        .add_processor("a", Twice, "src", suffixes=("1", "2"))
        .add_processor("b", Twice, "a", suffixes=("x", "y"), prefix="b")
        .add_processor("c", Twice, "a", suffixes=("x", "y"), prefix="c")
        .add_sink("s", "out", ["b", "c"])
    )


class Writer(Processor):
    def process(self, record: Record) -> None:
        if record.key is not None:
            self.context.get_store("s").put(record.key, record.value)


class Reader(Processor):
    def process(self, record: Record) -> None:
        if record.key is not None:
            found = self.context.get_store("s").get(record.key)
            self.context.forward(record.with_value(f"{text(record.value)}?{text(found)}"))


@topology
def papi_shared_store(params: Params) -> Topology:
    return (
        Topology()
        .add_source("src1", "in")
        .add_source("src2", "lookup")
        .add_processor("writer", Writer, "src1")
        .add_processor("reader", Reader, "src2")
        .add_store(key_value_store("s", key_serde="str"), "writer", "reader")
        .add_sink("s", "out", "reader")
    )


class UpperTable(Processor):
    def process(self, record: Record) -> None:
        if record.key is not None:
            value = None if record.value is None else record.value.upper()
            self.context.get_store("gs").put(record.key, value)


class LookUp(Processor):
    def process(self, record: Record) -> None:
        found = None if record.key is None else self.context.get_store("gs").get(record.key)
        self.context.forward(record.with_value(f"{text(record.value)}?{text(found)}"))


@topology
def papi_global_store(params: Params) -> Topology:
    return (
        Topology()
        .add_global_store(
            key_value_store("gs", key_serde="str"),
            "KSTREAM-SOURCE-0000000000",
            "g",
            "KTABLE-SOURCE-0000000001",
            UpperTable,
        )
        .add_source("KSTREAM-SOURCE-0000000002", "in")
        .add_processor("KSTREAM-PROCESSOR-0000000003", LookUp, "KSTREAM-SOURCE-0000000002")
        .add_sink("KSTREAM-SINK-0000000004", "out", "KSTREAM-PROCESSOR-0000000003")
    )
