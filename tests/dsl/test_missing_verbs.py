"""Verbs of the DSL that are used as those of Kafka Streams, Faust or Quix are: each error says what to write here."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Application, Processor, Record, TopologyError, key_value_store
from penstock.plugins.dsl import (
    GlobalKTable,
    JoinWindows,
    KGroupedStream,
    KStream,
    KTable,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    tumbling,
    within,
)
from penstock.plugins.dsl.grouped import KGroupedTable
from penstock.plugins.testing import TopologyTestDriver

from ..bad_input.world import says


class World:
    """A builder and one of each of what it makes."""

    def __init__(self) -> None:
        self.builder: Any = StreamsBuilder()
        self.stream: Any = self.builder.stream("in")
        self.table: Any = self.builder.table("table", "table-store")
        self.global_table: Any = self.builder.global_table("global", "global-store")
        self.grouped: Any = self.stream.group_by_key()
        self.grouped_table: Any = self.table.group_by(lambda value: (value, value))
        self.windowed: Any = self.grouped.windowed_by(tumbling("1m", grace="0s"))
        self.cogrouped: Any = self.grouped.cogroup(first)
        self.split: Any = self.stream.split()


def first(one: Any, other: Any) -> Any:
    return one


WINDOW = within("1m", grace="0s")
Misuse = Callable[[World, World], Any]

TWO_BUILDERS: dict[str, Misuse] = {
    "merge": lambda a, b: a.stream.merge(b.stream),
    "join of streams": lambda a, b: a.stream.join(b.stream, first, WINDOW),
    "left join of streams": lambda a, b: a.stream.left_join(b.stream, first, WINDOW),
    "outer join of streams": lambda a, b: a.stream.outer_join(b.stream, first, WINDOW),
    "join with a table": lambda a, b: a.stream.join(b.table, first),
    "join with a global table": lambda a, b: a.stream.join(b.global_table, first),
    "join of tables": lambda a, b: a.table.join(b.table, first),
    "join by foreign key": lambda a, b: a.table.join(b.table, first, foreign_key=lambda value: value),
    "cogroup": lambda a, b: a.grouped.cogroup(first).cogroup(b.grouped, first),
}


@pytest.mark.parametrize("case", TWO_BUILDERS)
def test_streams_of_two_builders_are_refused(case: str) -> None:
    with pytest.raises(TopologyError, match=r"(merge|join|cogroup): .* another StreamsBuilder.*one builder"):
        TWO_BUILDERS[case](World(), World())


NO_SUCH_VERB: dict[str, tuple[Callable[[World], Any], str]] = {
    "stream.count": (lambda w: w.stream.count(), "stream.group_by_key().count(...)"),
    "stream.reduce": (lambda w: w.stream.reduce(first), "stream.group_by_key().reduce(...)"),
    "stream.aggregate": (lambda w: w.stream.aggregate(list, first), "stream.group_by_key().aggregate(...)"),
    "stream.agg": (lambda w: w.stream.agg(), "stream.group_by_key().agg(...)"),
    "stream.cogroup": (lambda w: w.stream.cogroup(first), "stream.group_by_key().cogroup(...)"),
    "stream.windowed_by": (lambda w: w.stream.windowed_by(1), "stream.group_by_key().windowed_by(...)"),
    "stream.suppress": (lambda w: w.stream.suppress(1), "stream.to_table().suppress(...)"),
    "stream.mapValues": (lambda w: w.stream.mapValues(first), "map_values"),
    "stream.leftJoin": (lambda w: w.stream.leftJoin(w.table, first), "left_join"),
    "stream.windowedBy": (lambda w: w.stream.windowedBy(1), "stream.group_by_key().windowed_by(...)"),
    "stream.through": (lambda w: w.stream.through("x"), "repartition(NAME)"),
    "stream.transform": (lambda w: w.stream.transform(Passes), "process(SUPPLIER, stores=[...])"),
    "stream.flatTransformValues": (lambda w: w.stream.flatTransformValues(1), "process(SUPPLIER, stores=[...])"),
    "stream.apply": (lambda w: w.stream.apply(str), "map_values(FUNCTION)"),
    "stream.update": (lambda w: w.stream.update(str), "peek(FUNCTION)"),
    "stream.to_topic": (lambda w: w.stream.to_topic("x"), "to(TOPIC)"),
    "stream.tumbling_window": (lambda w: w.stream.tumbling_window("1s"), "group_by_key().windowed_by(tumbling("),
    "stream.sum": (lambda w: w.stream.sum(), "group_by_key().agg(total=sum_of("),
    "stream.set_timestamp": (lambda w: w.stream.set_timestamp(first), "write with_timestamp(FUNCTION)"),
    "stream.map_with_state": (lambda w: w.stream.map_with_state(first), "write stateful_map("),
    "connected.count": (lambda w: w.stream.connect(w.stream).count(), "process(ON_FIRST, ON_SECOND).group_by_key"),
    "stream.fill": (lambda w: w.stream.fill(x=1), "map_values(lambda value: {...})"),
    "stream.concat": (lambda w: w.stream.concat(w.stream), "merge(OTHER)"),
    "stream.items": (lambda w: w.stream.items(), "map_values(FUNCTION, with_key=True)"),
    "stream.take": (lambda w: w.stream.take(3), "agg(values=latest(N))"),
    "stream.join_asof": (lambda w: w.stream.join_asof(w.stream), "versioned_store(NAME, history_retention=...)"),
    "grouped.sum": (lambda w: w.grouped.sum(), 'write agg(total=sum_of("FIELD"))'),
    "windowed.mean": (lambda w: w.windowed.mean(), 'write agg(mean=mean_of("FIELD"))'),
    "windowed.collect": (lambda w: w.windowed.collect(), "collect_of("),
    "table.final": (lambda w: w.windowed.count().final(), 'windowed_by(WINDOWS, emit="on_close")'),
    "builder.run": (lambda w: w.builder.run(), "penstock.run(Application(ID, builder))"),
    "builder.timer": (lambda w: w.builder.timer(1), "self.context.schedule(INTERVAL, FUNCTION, WALL_CLOCK_TIME)"),
    "stream.fliter": (lambda w: w.stream.fliter(str), "did you mean 'filter'"),
    "table.count": (lambda w: w.table.count(), "table.group_by(...).count(...)"),
    "table.to": (lambda w: w.table.to("out"), "table.to_stream().to(...)"),
    "table.toStream": (lambda w: w.table.toStream(), "to_stream"),
    "table.windowed_by": (lambda w: w.table.windowed_by(1), "table.to_stream().group_by_key().windowed_by(...)"),
    "grouped.to": (lambda w: w.grouped.to("out"), "count().to_stream().to(...)"),
    "grouped.filter": (lambda w: w.grouped.filter(str), "before it is grouped: stream.filter(...).group_by_key()"),
    "grouped.windowedBy": (lambda w: w.grouped.windowedBy(1), "windowed_by"),
    "grouped table.windowed_by": (
        lambda w: w.grouped_table.windowed_by(1), "table.to_stream().group_by_key().windowed_by(...)",
    ),
    "windowed.to_stream": (lambda w: w.windowed.to_stream(), "count().to_stream(...)"),
    "windowed.suppress": (lambda w: w.windowed.suppress(1), "count().suppress(...)"),
    "cogrouped.count": (lambda w: w.cogrouped.count(), "aggregate(INITIALIZER)"),
    "cogrouped.to_stream": (lambda w: w.cogrouped.to_stream(), "aggregate(INITIALIZER).to_stream(...)"),
    "global.to_stream": (lambda w: w.global_table.to_stream(), "builder.table(TOPIC).to_stream(...)"),
    "global.join": (lambda w: w.global_table.join(w.stream, first), "stream.join(global_table, JOINER"),
    "split.to": (lambda w: w.split.branch(str, "a").to("x"), "default() or no_default() returns the streams by name"),
    "builder.globalTable": (lambda w: w.builder.globalTable("x"), "global_table"),
    "builder.map_values": (lambda w: w.builder.map_values(str), "builder.stream(TOPIC).map_values(...)"),
    "builder.topic": (lambda w: w.builder.topic("x"), "stream(TOPIC)"),
    "builder.add_store": (lambda w: w.builder.add_store(1), "add_state_store"),
    "builder.addStateStore": (lambda w: w.builder.addStateStore(1), "add_state_store"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_SUCH_VERB)
def test_a_verb_that_there_is_not_says_what_to_write(case: str) -> None:
    misuse, hint = NO_SUCH_VERB[case]
    with pytest.raises(AttributeError) as caught:
        misuse(World())
    says(caught.value, hint)


@pytest.mark.parametrize("module", ["penstock.dsl", "penstock.plugins.dsl"])
def test_a_class_of_kafka_streams_says_what_to_write(module: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(f"from {module} import Materialized")
    says(caught.value, "as in count(NAME, value_serde=...)")
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Nothing'"):
        importlib.import_module(module).Nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from {module} import Nothing")


CONSTRUCTORS: dict[str, tuple[Callable[[], Any], str]] = {
    "tumbling": (lambda: TimeWindows.ofSizeWithNoGrace(1), 'write tumbling("5m", grace="0s"), or hopping'),  # type: ignore[attr-defined]
    "in snake case": (lambda: TimeWindows.of_size_and_grace(1, 2), 'tumbling("5m", grace="1h")'),  # type: ignore[attr-defined]
    "of": (lambda: TimeWindows.of(1), 'tumbling("5m", grace="1h")'),  # type: ignore[attr-defined]
    "sliding": (lambda: SlidingWindows.ofTimeDifferenceWithNoGrace(1), 'write sliding("5m", grace="0s")'),  # type: ignore[attr-defined]
    "sessions": (lambda: SessionWindows.ofInactivityGapAndGrace(1, 2), 'sessions(gap="30m", grace="1h")'),  # type: ignore[attr-defined]
    "joins": (lambda: JoinWindows.of_time_difference_with_no_grace(1), 'within("5m", grace="0s")'),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("case", CONSTRUCTORS)
def test_a_constructor_of_windows_says_what_to_write(case: str) -> None:
    misuse, hint = CONSTRUCTORS[case]
    with pytest.raises(AttributeError) as caught:
        misuse()
    says(caught.value, hint)
    kinds: list[Any] = [TimeWindows, SlidingWindows, SessionWindows, JoinWindows]
    for kind in kinds:
        with pytest.raises(AttributeError, match=r"has no attribute 'official'$"):
            kind.official  # noqa: B018
        assert not hasattr(kind, "__wrapped__")


KINDS = {
    "stream": KStream, "table": KTable, "grouped": KGroupedStream, "grouped_table": KGroupedTable,
    "global_table": GlobalKTable, "builder": StreamsBuilder,
}  # fmt: skip


def test_each_verb_of_another_kind_is_pointed_to() -> None:
    world = World()
    verbs = {verb for kind in KINDS.values() for verb in dir(kind) if not verb.startswith("_")}
    without = []
    for kind in (*KINDS, "windowed", "cogrouped", "split"):
        owner = getattr(world, kind)
        for verb in sorted(verbs):
            try:
                getattr(owner, verb)
            except AttributeError as error:
                if re.search(r"has no attribute '\w+'$", str(error)):
                    without.append(f"{kind}.{verb}")
    assert not without


def test_a_field_by_its_name_says_what_to_write() -> None:
    world = World()
    with pytest.raises(
        TopologyError, match=r"group_by: .* found 'user'; for a field write lambda value: value\['user'\]"
    ):
        world.stream.group_by("user")
    with pytest.raises(TopologyError, match=r"lambda key, value: value\['user'\]"):
        world.stream.select_key("user", with_key=True)
    with pytest.raises(TypeError, match=r"stream = stream.map_values\(lambda value: \{\*\*value, 'price': ...\}\)"):
        world.stream["price"] = 1


def test_a_function_in_place_of_a_processor_says_what_to_write() -> None:
    world = World()
    world.stream.process(lambda record: record)
    with pytest.raises(TopologyError, match=r"write a class with a method process.*the DSL has map_values\(FUNCTION\)"):
        world.builder.build()


def test_what_is_no_verb_is_a_plain_attribute_error() -> None:
    """Libraries look for attributes: copy, pickle, notebooks."""
    world = World()
    for kind in (*KINDS, "windowed", "cogrouped", "split"):
        with pytest.raises(AttributeError, match="has no attribute '_ipython_display_'"):
            getattr(world, kind)._ipython_display_  # noqa: B018


REFUSED: dict[str, tuple[Callable[[World], Any], tuple[str, ...]]] = {
    "Java's order: foreign key": (
        lambda w: w.table.join(w.builder.table("t"), lambda value: value, first),
        ("join: ", "Kafka Streams' order", "join(other, JOINER, foreign_key=FUNCTION)"),
    ),
    "Java's order: foreign key, left": (
        lambda w: w.table.left_join(w.builder.table("t"), lambda value: value, first),
        ("left_join: ", "Kafka Streams' order", "left_join(other, JOINER, foreign_key=FUNCTION)"),
    ),
    "Java's order: global table": (
        lambda w: w.stream.join(w.global_table, lambda key, value: value, first),
        ("join: ", "Kafka Streams' order", "join(table, JOINER, select_key=FUNCTION)"),
    ),
    "a selector in third place": (
        lambda w: w.stream.left_join(w.global_table, first, lambda value: value),
        ("left_join: ", "left_join(table, JOINER, select_key=FUNCTION)"),
    ),
    "a function in place of a window": (
        lambda w: w.stream.join(w.builder.stream("s"), first, lambda value: value), ("needs a window", "within("),
    ),
    "a table with a global table": (
        lambda w: w.table.join(w.global_table, first), ("found a GlobalKTable", "table.to_stream().join(global_table"),
    ),
    "a grouped stream": (lambda w: w.stream.join(w.grouped, first), ("found a KGroupedStream", "before it is grouped")),
    "an outer join with a table": (lambda w: w.stream.outer_join(w.table, first), ("found a KTable", "to_stream()")),
    "merge with a table": (lambda w: w.stream.merge(w.table), ("found a KTable", "to_stream()")),
    "merge with a list": (lambda w: w.stream.merge([w.stream]), ("merge(one, other)",)),
    "a list of topics": (lambda w: w.builder.stream(["a", "b"]), ("stream('a', 'b')",)),
    "a pattern that is none": (lambda w: w.builder.stream(pattern="("), ("pattern '('", "regular expression")),
    "a number as pattern": (lambda w: w.builder.stream(pattern=3), ("pattern 3", "regular expression")),
    "a store by name": (lambda w: w.builder.add_state_store("x"), ("declared store", "key_value_store(NAME)")),
    "a list of branches": (lambda w: w.stream.branch([str]), ("branch({NAME: PREDICATE, ...})",)),
    "an index of a stream": (lambda w: w.stream["price"], ('map_values(lambda value: value["price"])',)),
    "an index of a table": (lambda w: w.table["anna"], ("driver.store(NAME)",)),
    "a loop over a stream": (lambda w: list(w.stream), ("foreach(FUNCTION)",)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_in_the_wrong_place_say_what_to_write(case: str) -> None:
    misuse, parts = REFUSED[case]
    with pytest.raises((TopologyError, TypeError)) as caught:
        misuse(World())
    says(caught.value, *parts)


class Passes(Processor):
    def __init__(self, store: str = "", topic: str = "") -> None:
        self.options = store, topic

    def process(self, record: Record) -> None:
        self.context.forward(record)


class AsksFor(Processor):
    def __init__(self, store: str = "absent") -> None:
        self.asked = store

    def init(self, context: Any) -> None:
        super().init(context)
        context.get_store(self.asked)

    def process(self, record: Record) -> None:
        pass


class SetsTimer(Passes):
    def process(self, record: Record) -> None:
        from penstock import STREAM_TIME

        self.context.timer("a", 5, STREAM_TIME)


def _run(world: World) -> None:
    with TopologyTestDriver(world.builder) as driver:
        driver.pipe("in", "a", "b")


def _not_copartitioned(world: World) -> None:
    world.stream.join(world.table, first).to("out")
    TopologyTestDriver(world.builder, partitions={"in": 2, "table": 3})


ADVICE: dict[str, tuple[Callable[[World], Any], str]] = {
    "a store that is not declared": (lambda w: w.stream.process(Passes, stores=["x"]), "add_state_store"),
    "a store that nobody uses": (
        lambda w: w.builder.add_state_store(key_value_store("x")), "process(..., stores=['x'])",
    ),
    "a store that is not connected": (
        lambda w: w.stream.process(AsksFor), "process(..., stores=[key_value_store('absent')])",
    ),
    "another one's store": (
        lambda w: w.stream.process(AsksFor, store="table-store"), "process(..., stores=['table-store'])",
    ),
    "timers that there are not": (
        lambda w: w.stream.process(lambda: SetsTimer()), "write process(..., timers=True)",
    ),
    "topics that do not fit": (_not_copartitioned, "repartition(NAME)"),
}  # fmt: skip


@pytest.mark.parametrize("case", ADVICE)
def test_advice_is_in_verbs_of_the_dsl(case: str) -> None:
    misuse, advice = ADVICE[case]
    world = World()
    with pytest.raises(Exception) as caught:
        misuse(world)
        _run(world)
    says(caught.value, advice)
    assert not re.search(r"add_(store|processor|sink|source|repartition)\b|topology\.", str(caught.value))


def test_an_empty_program() -> None:
    with pytest.raises(TopologyError, match=r"builder.stream\(TOPIC\)"):
        Application("shop", StreamsBuilder())


def test_options_of_a_supplier_may_be_named_like_arguments() -> None:
    builder = StreamsBuilder()
    builder.add_global_store(key_value_store("prices"), "prices", Passes, store="prices", topic="other")
    builder.stream("in").to("out")
    assert builder.build().build().nodes["KTABLE-SOURCE-0000000001"].options == {"store": "prices", "topic": "other"}  # type: ignore[union-attr]
