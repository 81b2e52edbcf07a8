"""Programs to simulate: each kind of store, joins, repartition topics, timers of both clocks; by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    AsyncProcessor,
    BatchProcessor,
    Processor,
    Record,
    Retry,
    Topology,
    key_value_store,
    list_store,
    lru_map,
    skip,
    versioned_store,
)
from penstock.dsl import StreamsBuilder, sessions, tumbling
from penstock.plugins.testing.simulation.contract import some_records
from penstock.serdes import of
from penstock.testing.simulation import SimulationContract, spend

from .unordered import Group, counts_of_groups, regrouped_by_groups

SERDES: dict[str, Any] = {"key_serde": "str", "value_serde": "int"}


class Keeps(Processor):
    """Answers each record with what its store says of the key, and puts the record there."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_store("kept")


class Counts(Keeps):
    def process(self, record: Record) -> None:
        count = (self.store.get(record.key) or 0) + 1
        self.store.put(record.key, count)
        self.context.forward(record.with_value(count))


class Repeats(Keeps):
    """Answers each record with itself, whatever was there before."""

    def process(self, record: Record) -> None:
        self.store.put(record.key, record.value)
        self.context.forward(record)


class StreamTimes(Keeps):
    """Answers each record with the stream time, and keeps the last one of its key."""

    def process(self, record: Record) -> None:
        self.store.put(record.key, record.value)
        self.context.forward(record.with_value(self.context.current_stream_time_ms()))


class Tries(Counts):
    """Counts, with the help of something outside that fails at first for some values."""

    def __init__(self, tries: Counter[tuple[str, int]]) -> None:
        self.tries = tries

    def process(self, record: Record) -> None:
        again = record.key, record.timestamp
        self.tries[again] += 1
        if record.value < 3 and self.tries[again] <= 2:
            raise TimeoutError
        super().process(record)


class AsksFor(AsyncProcessor):
    """Adds one to the count that it asked with: a key whose records are asked about together loses some."""

    capacity, max_pending = 2, 3

    def request(self, record: Record) -> Any:
        return self.context.get_store("kept").get(record.key) or 0

    def call(self, request: int) -> int:
        return request + 1

    def process_result(self, record: Record, result: int) -> None:
        self.context.get_store("kept").put(record.key, result)
        self.context.forward(record.with_value(result))


class CountsInBatches(BatchProcessor):
    """Answers each record with the count of its key; fails for some values, after it has counted them."""

    max_records, max_wait = 4, "300ms"

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_store("kept")

    def process_batch(self, records: Sequence[Record]) -> None:
        for record in records:
            count = (self.store.get(record.key) or 0) + 1
            self.store.put(record.key, count)
            if record.value == 3:
                raise ValueError(record.value)
            self.context.forward(record.with_value(count))


def counts_but_those_that_fail(records: list[Record]) -> Iterator[tuple[str, int]]:
    """A record that fails alone leaves what it has put, as in a Processor."""
    counts = Counter[str]()
    for key, value, *_ in records:
        counts[key] += 1
        if value != 3:
            yield key, counts[key]


class Slow(Counts):
    """Counts; for some values it takes long, or asks for a commit."""

    def process(self, record: Record) -> None:
        spend({9: 1.5, 8: 0.06, 7: 40.0}.get(record.value, 0.0))
        super().process(record)
        if record.value in (1, 9):
            self.context.commit()


class AlwaysSlow(Counts):
    """Counts; most records take longer than a turn may."""

    def process(self, record: Record) -> None:
        spend(1.1 if record.value > 2 else 0.0)
        super().process(record)


class CountsAtLength(Keeps):
    """Counts, and keeps the counts as long texts."""

    def process(self, record: Record) -> None:
        count = int(self.store.get(record.key) or 0) + 1
        self.store.put(record.key, f"{count:0300}")
        self.context.forward(record.with_value(count))


class Large(Counts):
    """Counts; the answers have long keys, and those of one value are larger than the topic takes."""

    def process(self, record: Record) -> None:
        super().process(record._replace(key=record.key * (3 if record.value == 5 else 1) * 2_000))


class CountsToo(Processor):
    """Counts into two stores, and sends nothing on."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.both = [context.get_store(name) for name in ("more", "here")]

    def process(self, record: Record) -> None:
        for store in self.both:
            store.put(record.key, (store.get(record.key) or 0) + 1)


class Names(Processor):
    """Fills a global store."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_store("names")

    def process(self, record: Record) -> None:
        self.store.put(record.key, record.value)


class Ignores(Processor):
    def process(self, record: Record) -> None:
        """Do nothing."""


class NamesAfterTries(Names):
    """The same, with the help of something outside that fails at first for each key."""

    def __init__(self, tries: Counter[str]) -> None:
        self.tries = tries

    def process(self, record: Record) -> None:
        self.tries[record.key] += 1
        if self.tries[record.key] == 1:
            raise TimeoutError
        super().process(record)


class NamedCounts(Counts):
    """Counts, and says what the global store has."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.names = context.get_store("names")

    def process(self, record: Record) -> None:
        count = (self.store.get(record.key) or 0) + 1
        self.store.put(record.key, count)
        self.context.forward(record.with_value(count * 100 + (self.names.get(record.key) or 0)))


class Lists(Keeps):
    def process(self, record: Record) -> None:
        if record.value == 0:
            self.store.delete(record.key)
        else:
            self.store.add(record.key, record.value)
        self.context.forward(record.with_value(sum(self.store.get(record.key))))


class Versions(Keeps):
    def process(self, record: Record) -> None:
        self.store.put(record.key, record.value or None, record.timestamp)
        before = self.store.get(record.key, as_of=record.timestamp - 500)
        self.context.forward(record.with_value(-1 if before is None else before.value))


class Reminds(Keeps):
    """Counts; after each record comes a timer of the stream time, and after that one of the wall clock."""

    def process(self, record: Record) -> None:
        self._say("record")
        self.context.timer(f"{record.timestamp}", record.timestamp + 1, STREAM_TIME)

    def on_timer(self, key: str, at: int) -> None:
        if key.endswith("wall"):
            self._say("wall")
        else:
            self._say("stream")
            self.context.timer(f"{key} wall", self.context.current_system_time_ms() + 150, WALL_CLOCK_TIME)

    def _say(self, what: str) -> None:
        count = (self.store.get(what) or 0) + 1
        self.store.put(what, count)
        self.context.forward(Record(what, count, 1))


class RemindsSlowly(Reminds):
    """The same; a timer of the wall clock takes longer than a turn may."""

    def on_timer(self, key: str, at: int) -> None:
        super().on_timer(key, at)
        spend(1.1 if key.endswith("wall") else 0.0)


class Schedules(Keeps):
    """Counts; for some values it schedules a function of the stream time that counts its calls."""

    def process(self, record: Record) -> None:
        if record.value in (2, 9):
            self.context.schedule(f"{record.value * 100}ms", self.passed, STREAM_TIME)
        self._say("record", record.timestamp)

    def passed(self, timestamp: int) -> None:
        self._say("passed", timestamp)

    def _say(self, what: str, timestamp: int) -> None:
        count = (self.store.get(what) or 0) + 1
        self.store.put(what, count)
        self.context.forward(Record(what, count, timestamp))


class RemindsAfterTries(Reminds):
    """The same, with the help of something outside that fails twice."""

    def __init__(self, tries: Counter[str]) -> None:
        self.tries = tries

    def on_timer(self, key: str, at: int) -> None:
        self.tries["timers"] += 1
        if self.tries["timers"] in (1, 4):
            raise TimeoutError
        super().on_timer(key, at)


def reminders_after_tries() -> Topology:
    outside = Counter[str]()
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("keeps", lambda: RemindsAfterTries(outside), "in", stores=[key_value_store("kept")], timers=True)
        .add_sink("out", "out", "keeps")
    )


def reminders(records: list[Record]) -> list[tuple[str, int]]:
    """One answer a record; of the timers, one for each time below the last one: that one moves stream time no more."""
    times = len({record.timestamp for record in records if record.timestamp < records[-1].timestamp})
    numbers = {"record": len(records), "stream": times, "wall": times}
    return [(what, number + 1) for what, count in numbers.items() for number in range(count)]


def topology(processor: type[Processor], store: Any) -> Topology:
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("keeps", processor, "in", stores=[store])
        .add_sink("out", "out", "keeps")
    )


def counts() -> Topology:
    return topology(Counts, key_value_store("kept"))


def counts_with_more(*, logged: bool = False) -> Topology:
    """Counts as `counts`, with a processor and two stores more, one of which is not `logged`."""
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("keeps", Counts, "in", stores=[key_value_store("kept")])
        .add_processor(
            "more", CountsToo, "in", stores=[key_value_store("more"), key_value_store("here", logged=logged)]
        )
        .add_sink("out", "out", "keeps")
    )


def counts_with_more_logged() -> Topology:
    return counts_with_more(logged=True)


def counts_with_names() -> Topology:
    """Answers as `NamedCounts`, with a store that each task fills from a topic of its own."""
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("keeps", NamedCounts, "in", stores=[key_value_store("kept"), "names"])
        .add_sink("out", "out", "keeps")
        .add_read_only_store(key_value_store("names"), "read names", "prices", "fill names", Names)
    )


def repeats_beside_prices() -> Topology:
    """Answers as `repeats`, and reads another topic."""
    return repeats().add_source("read names", "prices").add_processor("fill names", Ignores, "read names")


def repeats_with_own_names() -> Topology:
    """Answers as `repeats`, beside a store that each task fills from a topic of its own, and that nobody asks."""
    return repeats().add_read_only_store(key_value_store("names"), "read names", "prices", "fill names", Names)


def repeats_with_names() -> Topology:
    """Answers as `repeats`, beside a global store that nobody asks."""
    return repeats().add_global_store(key_value_store("names"), "read names", "prices", "fill names", Names)


def slow() -> Topology:
    return topology(Slow, key_value_store("kept"))


def tries() -> Topology:
    outside = Counter[tuple[str, int]]()
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("keeps", lambda: Tries(outside), "in", stores=[key_value_store("kept")])
        .add_sink("out", "out", "keeps")
    )


def large(records: list[Record]) -> Iterator[tuple[str, int]]:
    kept = [record._replace(key=record.key * (3 if record.value == 5 else 1) * 2_000) for record in records]
    for record, (key, count) in zip(records, counts_of_each(kept), strict=True):
        if record.value != 5:
            yield key, count


def counts_of_each(records: list[Record]) -> Iterator[tuple[str, int]]:
    seen = Counter[str]()
    for key, *_ in records:
        seen[key] += 1
        yield key, seen[key]


def repeats() -> Topology:
    return topology(Repeats, key_value_store("kept"))


def expiring() -> Topology:
    return topology(Counts, key_value_store("kept", ttl="2s", ttl_clock=STREAM_TIME))


def times_behind_batches() -> StreamsBuilder:
    builder = StreamsBuilder()
    batches = builder.stream("in").map_values_batch(lambda values: values, max_records=3, max_wait="300ms")
    merged = batches.merge(builder.stream("prices"))
    merged.process(StreamTimes, stores=[key_value_store("kept")], name="times").to("out")
    return builder


def windows() -> StreamsBuilder:
    builder = StreamsBuilder()
    table = builder.stream("in").group_by_key().windowed_by(tumbling("1s", grace="0s")).count()
    table.to_stream().map(lambda window, count: (f"{window.key} {window.start}", count), with_key=True).to("out")
    return builder


def session_windows() -> StreamsBuilder:
    builder = StreamsBuilder()
    table = builder.stream("in").group_by_key().windowed_by(sessions(gap="500ms", grace="0s")).count()
    table.to_stream().filter(lambda count: count is not None).map(
        lambda window, count: (f"{window.key} {window.start}", count), with_key=True
    ).to("out")
    return builder


def regrouped() -> StreamsBuilder:
    builder = StreamsBuilder()
    table = builder.stream("in").select_key(lambda value: f"{value % 3}").group_by_key().count()
    table.to_stream().to("out")
    return builder


def joined() -> StreamsBuilder:
    builder = StreamsBuilder()
    table = builder.table("prices")
    builder.stream("in").left_join(table, lambda value, price: value * 100 + (price or 0)).to("out")
    return builder


def connected() -> StreamsBuilder:
    """Answer records with their number, and with the last price; a timer of the stream time forgets that."""
    builder = StreamsBuilder()
    numbered = builder.stream("in").stateful_map(lambda number, value: (number + 1, number), int, "numbers")

    def answer(record: Record, context: Any) -> None:
        context.forward(record.with_value(record.value * 100 + (context.get_store("kept").get(record.key) or 0)))

    def keep(record: Record, context: Any) -> None:
        context.get_store("kept").put(record.key, record.value)
        context.timer(record.key, record.timestamp + 700, STREAM_TIME)

    def forget(key: Any, at: int, context: Any) -> None:
        context.get_store("kept").delete(key)

    stores = [key_value_store("kept")]
    both = numbered.connect(builder.stream("prices")).process(answer, keep, on_timer=forget, stores=stores, name="both")
    both.to("out")
    return builder


def suppressed() -> StreamsBuilder:
    """Answer a count once an update of any key is a second later."""
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count().suppress("1s").to_stream().to("out")
    return builder


def named() -> Topology:
    return topology(NamedCounts, key_value_store("kept")).add_global_store(
        key_value_store("names"), "read names", "prices", "fill names", Names
    )


def named_after_tries() -> Topology:
    outside = Counter[str]()
    return topology(NamedCounts, key_value_store("kept")).add_global_store(
        key_value_store("names"), "read names", "prices", "fill names", lambda: NamesAfterTries(outside)
    )


def look_ups(order: Any, *, most: int) -> StreamsBuilder:
    """Each record is counted behind a call that returns at some later step; by partition, told the stream time."""
    builder = StreamsBuilder()
    then = Counts if order == "key" else StreamTimes
    looked_up = builder.stream("in").map_values_async(
        lambda value: value, name="look", order=order, capacity=2, max_pending=most
    )
    looked_up.process(then, stores=[key_value_store("kept")], name="then").to("out")
    return builder


def two_topics(random: Random) -> Mapping[str, Sequence[Record]]:
    return {"in": some_records(random), "prices": some_records(random)}


def late_records(random: Random) -> list[Record]:
    """Return `some_records`, every third of which is late, by up to two seconds."""
    late = (0, 0, 0, 0, 500, 2_000)
    return [each._replace(timestamp=max(0, each.timestamp - random.choice(late))) for each in some_records(random)]


def many_records(random: Random) -> list[Record]:
    return [record for _ in range(4) for record in some_records(random)]


class Simulated(SimulationContract):
    options = SERDES


def contract(**parts: Any) -> type[SimulationContract]:
    parts["options"] = {**SERDES, **parts.get("options", {})}
    methods = {key: staticmethod(value) if callable(value) else value for key, value in parts.items()}
    return type("OfProgram", (SimulationContract,), methods)


DEPLOYED = [counts_with_more, counts]
LOGGED = [counts_with_more_logged, counts_with_more, counts_with_more_logged]
CONTRACTS = {
    "counts": contract(program=counts),
    "counts, changelog beside the log": contract(program=counts, options={"changelog": "memory:"}),
    "counts, changelog in a directory": contract(program=counts, options={"changelog": "directory:"}),
    "counts, long chains": contract(
        program=counts, records=many_records, options={"changelog": "directory:", "changelog_grace": "0ms"}
    ),
    "counts, changelog in an object store": contract(
        program=counts, options={"changelog": "directory:s3://bucket/of mine"}
    ),
    "counts, another program": contract(program=counts, deployments=[counts_with_more, counts]),
    "counts, another program, changelog in a directory": contract(
        program=counts, deployments=[counts_with_more, counts], options={"changelog": "directory:"}
    ),
    "counts, global store": contract(program=named, records=two_topics),
    "counts, three hosts": contract(program=counts, options={"hosts": 3, "partitions": 3}),
    "counts, at least once": contract(
        program=counts, compared="at least once", options={"processing_guarantee": "at_least_once"}
    ),
    "counts, after tries": contract(
        program=tries, reference=counts_of_each, options={"processing_handler": Retry(9, "300ms")}
    ),
    **{
        f"repeats, from {policy} where records are gone": contract(
            program=repeats, compared=compared, options={"offset_out_of_range": policy}
        )
        for policy, compared in (("fail", "with gaps"), ("earliest", "any of them"), ("latest", "with gaps"))
    },
    **{
        f"repeats, from {reset} at first": contract(
            program=repeats, compared="with gaps", options={"offset_reset": reset}
        )
        for reset in ("latest", "1h")
    },
    "counts, global store of a compacted topic": contract(
        program=named,
        records=two_topics,
        options={"topics": {"prices": {"cleanup.policy": "compact", "delete.retention.ms": "30000"}}},
    ),
    "counts, global store after tries": contract(
        program=named_after_tries, records=two_topics, options={"processing_handler": Retry(9, "300ms")}
    ),
    "reminders, after tries": contract(
        program=reminders_after_tries,
        reference=reminders,
        compared="in any order",
        options={"processing_handler": Retry(99, "300ms")},
    ),
    "counts, slowly": contract(program=slow, records=many_records),
    "counts, always slowly, on one host": contract(
        program=lambda: topology(AlwaysSlow, key_value_store("kept")), options={"hosts": 1, "partitions": 3}
    ),
    "counts, large": contract(
        program=lambda: topology(Large, key_value_store("kept")),
        records=many_records,
        reference=large,
        options={"production_handler": skip, "topics": {"out": {"max.message.bytes": "15000"}}},
    ),
    "counts, read-only store": contract(program=counts_with_names, records=two_topics),
    "repeats, a read-only store comes": contract(
        program=repeats_beside_prices, records=two_topics, deployments=[repeats_with_own_names, repeats_with_own_names]
    ),
    "counts, read-only store, in files": contract(
        program=counts_with_names, records=two_topics, options={"changelog": "directory:"}
    ),
    "repeats, global store whose topic is made again": contract(
        program=repeats_with_names,
        records=two_topics,
        compared="any of them",
        options={"offset_out_of_range": "earliest"},
    ),
    "counts, a store in the changelog and not": contract(program=counts_with_more, deployments=LOGGED),
    "counts, a store in the changelog and not, changelog in a directory": contract(
        program=counts_with_more, deployments=LOGGED, options={"changelog": "directory:"}
    ),
    "counts, long chains beside the log": contract(
        program=lambda: topology(CountsAtLength, key_value_store("kept", value_serde="str")),
        records=many_records,
        options={"changelog": "memory:", "changelog_grace": "0ms"},
    ),
    **{
        f"counts, with replicas, changelog {place}": contract(
            program=counts, deployments=DEPLOYED, options={"changelog": place, "replicas": True}
        )
        for place in ("topic:", "directory:", "directory:s3://bucket/of mine")
    },
    **{
        f"counts, with standbys, changelog {place}": contract(
            program=counts, deployments=DEPLOYED, options={"changelog": place, "standbys": True}
        )
        for place in ("topic:", "directory:")
    },
    "counts, with replicas, long chains": contract(
        program=counts,
        records=many_records,
        options={"changelog": "directory:", "changelog_grace": "0ms", "replicas": True},
    ),
    "expiring": contract(program=expiring),
    "lists": contract(program=lambda: topology(Lists, list_store("kept"))),
    "lru": contract(program=lambda: topology(Counts, lru_map("kept", max_entries=2))),
    "versions": contract(program=lambda: topology(Versions, versioned_store("kept", history_retention="2s"))),
    "reminders": contract(
        program=lambda: topology(Reminds, key_value_store("kept")), reference=reminders, compared="in any order"
    ),
    "reminders, slowly": contract(
        program=lambda: topology(RemindsSlowly, key_value_store("kept")), reference=reminders, compared="in any order"
    ),
    "schedules": contract(program=lambda: topology(Schedules, key_value_store("kept")), compared="in any order"),
    "windows": contract(program=windows, compared="latest"),
    "stream times behind batches": contract(program=times_behind_batches, records=two_topics),
    **{
        f"look-ups by {order}": contract(program=partial(look_ups, order, most=most), records=late_records)
        for order, most in (("key", 3), ("partition", 100))
    },
    "counts that are asked for": contract(program=lambda: topology(AsksFor, key_value_store("kept"))),
    "counts in batches that fail": contract(
        program=lambda: topology(CountsInBatches, key_value_store("kept")),
        reference=counts_but_those_that_fail,
        options={"processing_handler": skip},
    ),
    "sessions": contract(program=session_windows, compared="latest"),
    "regrouped": contract(program=regrouped, compared="latest"),
    "joined": contract(program=joined, records=two_topics),
    "connected": contract(program=connected, records=two_topics),
    "suppressed": contract(program=suppressed, options={"statestore_cache_max_bytes": 0}),
    "groups in another order": contract(program=counts_of_groups(of(Group))),
    "regrouped by groups in another order": contract(program=regrouped_by_groups, compared="latest"),
    "stream times": contract(program=lambda: topology(StreamTimes, key_value_store("kept")), records=late_records),
}
IN_FILES = (
    "expiring",
    "lists",
    "lru",
    "versions",
    "reminders",
    "windows",
    "sessions",
    "regrouped",
    "joined",
    "groups in another order",
)
FILES = {
    f"{name}, in files": type(
        "InFiles", (CONTRACTS[name],), {"options": {**CONTRACTS[name].options, "changelog": "directory:"}}
    )
    for name in IN_FILES
}
"""Programs of every kind of store, with the changelog in a directory."""
CONTRACTS |= FILES
