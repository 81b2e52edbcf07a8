"""Re-opening a task between any two commits changes nothing: random programs over random input, kept open and opened
again."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Processor, Record, Topology, ValueTransformer, key_value_store
from penstock.plugins.testing import TopologyTestDriver
from penstock.program.extractors import use_partition_time_on_invalid_timestamp

from ..rotation import examples


class Stateful(Processor):
    """What the kinds below share: one store of their own."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_store(f"{context.node}-store")


class Count(Stateful):
    def process(self, record: Record) -> None:
        counted = (self.store.get(str(record.key)) or 0) + 1
        self.store.put(str(record.key), counted)
        self.context.forward(record.with_value(f"{record.value}{counted}"))


class Dedupe(Stateful):
    def process(self, record: Record) -> None:
        if self.store.put_if_absent(str(record.value), True) is None:
            self.context.forward(record)


class Flush(Stateful):
    """Holds records back until stream time has gone on."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("7ms", self.flush, STREAM_TIME, start=3)

    def process(self, record: Record) -> None:
        self.store.put(str(record.key), [record.key, record.value])

    def flush(self, now: int) -> None:
        for text, (key, value) in list(self.store.all()):
            self.context.forward(Record(key, value, now))
            self.store.delete(text)


class Tick(Stateful):
    """Tells the wall clock; the third tick is its last, by a count in its store."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.handle = context.schedule("5ms", self.tick, WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        self.context.forward(record)

    def tick(self, now: int) -> None:
        ticks = (self.store.get("ticks") or 0) + 1
        self.store.put("ticks", ticks)
        self.context.forward(Record("tick", f"{now}", max(self.context.current_stream_time_ms(), 0)))
        if ticks == 3:
            self.handle.cancel()


class Times(Processor):
    def process(self, record: Record) -> None:
        context = self.context
        times = f"@{record.timestamp}/{context.current_stream_time_ms()}/{context.current_system_time_ms()}"
        context.forward(record.with_value(f"{record.value}{times}"))


class Last(ValueTransformer):
    """The value before this one, by key."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_store(f"{context.node}-store")

    def transform(self, key: Any, value: Any) -> Any:
        before = self.store.get(str(key))
        self.store.put(str(key), value)
        return f"{value}<{before}"


KINDS = {kind.__name__: kind for kind in (Count, Dedupe, Flush, Tick, Times, Last)}
CHAINS = st.lists(st.sampled_from([*KINDS, "repartition"]), min_size=1, max_size=4)


def program(chains: list[list[str]], merged: bool) -> Topology:
    """For each chain a source and its processors; merged at the end, or with a sink each."""
    topology = Topology()
    ends = []
    for number, chain in enumerate(chains):
        last = f"in{number}"
        topology.add_source(last, f"topic{number}", timestamp_extractor=use_partition_time_on_invalid_timestamp)
        for place, kind in enumerate(chain):
            name = f"{kind}{number}{place}".lower()
            if kind == "repartition":
                topology.add_repartition(name, last)
            elif kind == "Times":
                topology.add_processor(name, Times, last)
            else:
                topology.add_processor(
                    name, KINDS[kind], last, stores=[key_value_store(f"{name}-store", key_serde="str")]
                )
            last = name
        ends.append(last)
    if merged:
        topology.add_processor("merged", Times, ends)
        ends = ["merged"]
    for number, end in enumerate(ends):
        topology.add_sink(f"out{number}", f"out{number}", end)
    return topology


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["topic0", "topic1"]),
            st.sampled_from([None, "k", "l"]),
            st.sampled_from("vw"),
            st.integers(0, 25),
        ),
        st.integers(0, 12),
    ),
    max_size=10,
)
"""A record to pipe, or by how much the wall clock goes on."""


def run(topology: Topology, steps: list[Any], *, reopen_tasks: bool, **settings: Any) -> tuple[Any, ...]:
    with TopologyTestDriver(topology, reopen_tasks=reopen_tasks, initial_wall_clock_ms=100, **settings) as driver:
        seen = []
        for step in steps:
            if isinstance(step, int):
                driver.advance_wall_clock(f"{step}ms")
            elif step[0] in driver.application.program.topics():
                driver.pipe(*step)
            seen.append({topic: driver.read_all(topic) for topic in driver.output_topics()})
        stores = {name: dict(driver.store(name).all()) for name in driver.application.program.stores}
        counts = {name: (each.records_in, each.records_out, each.dropped) for name, each in driver.metrics().items()}
        return seen, stores, counts


@settings(max_examples=examples(40))
@given(
    st.lists(CHAINS, min_size=1, max_size=2),
    st.booleans(),
    STEPS,
    st.sampled_from([{}, {"max_task_idle": None}, {"max_task_idle": "10ms"}]),
)
@example(
    [["Count"], ["Tick"]], True, [("topic0", None, "v", 0), 10], {"max_task_idle": "10ms"}
)  # it has waited long enough just when the clock ticks
@example(
    [["Count"], ["Tick"]], True, [("topic0", None, "v", 0)] * 3 + [5], {"max_task_idle": "10ms"}
)  # the clock ticks while it waits
def test_opening_tasks_again_after_every_step_changes_nothing(
    chains: list[list[str]], merged: bool, steps: list[Any], options: dict[str, Any]
) -> None:
    topology = program(chains, merged)
    assert run(topology, steps, reopen_tasks=True, **options) == run(topology, steps, reopen_tasks=False, **options)


def test_who_keeps_state_in_an_attribute_is_found_out() -> None:
    class Forgetful(Processor):
        count = 0

        def process(self, record: Record) -> None:
            self.count += 1
            self.context.forward(record.with_value(str(self.count)))

    topology = Topology().add_source("in", "topic0").add_processor("p", Forgetful, "in").add_sink("out", "out", "p")
    steps = [("topic0", "k", "v", 0)] * 2
    assert run(topology, steps, reopen_tasks=True) != run(topology, steps, reopen_tasks=False)
