"""Task: which record is next, stream time, forwarding, timestamps, sinks. Each law against a model that can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Processor,
    ProductionError,
    Record,
    Topology,
    TopologyError,
    ValueTransformer,
    key_value_store,
    skip,
)
from penstock.errors import ConfigError, ProcessingError, SerdeError
from penstock.plugins.testing import TopologyTestDriver
from penstock.program.extractors import (
    skip_on_invalid_timestamp,
    use_partition_time_on_invalid_timestamp,
    wall_clock_timestamp,
)
from penstock.record import TopicPartition
from penstock.serde import StrSerde
from penstock.task.progress import TaskProgress
from penstock.task.task import Task

from .tasks import Calling, Pass, batch, one_node, open_task, values

# ---------------------------------------------------------------- which record is next


def named(context: Any, record: Record) -> None:
    metadata = context.record_metadata
    text = f"{metadata.topic}{metadata.offset}@{record.timestamp} st={context.current_stream_time_ms()}"
    context.forward(record.with_value(text))


def several_inputs() -> Topology:
    return (
        Topology()
        .add_source("first", "b", "a")
        .add_source("second", "c")
        .add_processor("p", lambda: Calling(named), ["first", "second"])
        .add_sink("out", "out", "p")
    )


ORDER = ("b", "a", "c")
"""The order of the topics of `several_inputs` as they were added."""

TIMES = st.lists(st.integers(0, 6), max_size=7)
INPUTS = st.fixed_dictionaries(dict.fromkeys(ORDER, TIMES))


def merged(inputs: dict[str, list[int]]) -> list[str]:
    """Of the heads, always the one with the lowest timestamp; of equal ones, that of the topic added first."""
    heads = dict.fromkeys(ORDER, 0)
    stream_time = -1
    expected: list[str] = []
    while True:
        found = [
            (inputs[topic][at], order, topic)
            for order, (topic, at) in enumerate(heads.items())
            if at < len(inputs[topic])
        ]
        if not found:
            return expected
        timestamp, _, topic = min(found)
        stream_time = max(stream_time, timestamp)
        expected.append(f"{topic}{heads[topic]}@{timestamp} st={stream_time}")
        heads[topic] += 1


@given(INPUTS, st.data())
def test_the_oldest_head_is_next_and_ties_go_by_the_order_of_sources(
    inputs: dict[str, list[int]], data: st.DataObject
) -> None:
    task = open_task(several_inputs(), max_task_idle=None)
    for topic, times in inputs.items():
        # A batch more or less is no difference.
        cut = data.draw(st.integers(0, len(times)))
        records = [("k", "v", time) for time in times]
        task.feed(batch(topic, *records[:cut]))
        task.feed(batch(topic, *records[cut:], offset=cut))
    seen: list[str] = []
    while task.process(data.draw(st.integers(1, 5))):
        seen += values(task)
    assert seen == merged(inputs)
    assert task.take_commit().positions == {TopicPartition(topic, 0): len(inputs[topic]) for topic in ORDER}


@given(INPUTS, st.data())
def test_what_the_log_still_has_is_waited_for(inputs: dict[str, list[int]], data: st.DataObject) -> None:
    task = open_task(several_inputs())
    task.plan({TopicPartition(topic, 0): len(times) for topic, times in inputs.items()}, 0)
    seen: list[str] = []
    while wants := task.wants():
        for (topic, _), start, end in wants:
            records = [("k", "v", time) for time in inputs[topic]]
            assert end == len(records)
            stop = data.draw(st.integers(start + 1, end))
            task.feed(batch(topic, *records[start:stop], offset=start))
        task.process(100)
        seen += values(task)
    assert seen == merged(inputs)


@pytest.mark.parametrize("max_task_idle", ["0ms", "10ms"])
def test_an_input_of_which_the_end_is_unknown_is_waited_for(max_task_idle: str) -> None:
    """KIP-695: unknown is not empty. The idle time begins when the log has said that there is no more."""
    first, second, third = (TopicPartition(topic, 0) for topic in ORDER)
    task = open_task(several_inputs(), max_task_idle=max_task_idle, wall_clock_ms=0)
    task.feed(batch("a", ("k", "v", 5)))
    task.plan({first: 0, second: 1, third: None}, 100)
    assert task.process(10) == 0
    assert task.wants() == []
    task.plan({first: 0, second: 1, third: 0}, 100)
    assert task.process(10) == (1 if max_task_idle == "0ms" else 0)
    task.plan({first: 0, second: 1, third: 0}, 110)
    assert task.process(10) == (0 if max_task_idle == "0ms" else 1)


def test_a_task_that_never_waits_takes_an_unknown_end_for_the_end() -> None:
    task = open_task(several_inputs(), max_task_idle=None)
    task.feed(batch("a", ("k", "v", 5)))
    task.plan({TopicPartition("c", 0): None}, 0)
    assert task.process(10) == 1


def test_a_positive_idle_time_waits_for_an_empty_input_by_the_wall_clock() -> None:
    task = open_task(several_inputs(), max_task_idle="10ms", wall_clock_ms=100)
    task.feed(batch("a", ("k", "v", 5)))
    assert task.process(10) == 0
    task.plan({}, 109)
    assert task.process(10) == 0
    task.plan({}, 110)
    assert task.process(10) == 1


def test_the_idle_time_survives_a_reopening_and_starts_anew_once_it_was_used() -> None:
    task = open_task(several_inputs(), max_task_idle="10ms", wall_clock_ms=100)
    task.feed(batch("a", ("k", "v", 5)))
    task.process(10)
    assert task.take_commit().has_changed
    again = open_task(several_inputs(), max_task_idle="10ms", wall_clock_ms=110, saved=task.engine_state())
    again.process(10)  # nothing was read again yet
    again.feed(batch("a", ("k", "v", 5)))
    assert again.process(10) == 1
    again.process(10)
    again.feed(batch("a", ("k", "v", 6), offset=1))
    assert again.process(10) == 0


def test_input_on_all_partitions_ends_the_waiting() -> None:
    task = open_task(several_inputs(), max_task_idle="10ms")
    for topic, time in (("a", 5), ("b", 6), ("c", 3)):
        task.feed(batch(topic, ("k", "v", time)))
    assert task.process(10) == 1  # then c is empty again
    assert values(task) == ["c0@3 st=3"]


def test_no_input_of_another_task_is_taken() -> None:
    task = open_task(one_node(Pass))
    with pytest.raises(ConfigError, match="task 0_0 does not read in-1; it reads in-0"):
        task.feed(batch("in", ("k", "v", 0), partition=1))


def test_several_partitions_of_a_topic_are_inputs_of_their_own() -> None:
    task = open_task(one_node(Pass), partitions={"in": [0, 1]}, max_task_idle=None)
    task.feed(batch("in", ("k", "a", 5), ("k", "b", 7)))
    task.feed(batch("in", ("k", "c", 6), partition=1))
    task.process(10)
    assert values(task) == ["a", "c", "b"]


# ---------------------------------------------------------------- positions and commits


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 9))
def test_the_position_is_that_of_the_first_record_not_processed(times: list[int], limit: int) -> None:
    task = open_task(one_node(Pass))
    partition = TopicPartition("in", 0)
    assert task.take_commit().positions == {partition: 0}
    gaps = batch("in", *[("k", "v", time) for time in times])
    gaps.offsets = [7 + 3 * number for number in range(len(times))]
    gaps.next_offset = 100
    task.feed(gaps)
    task.plan({partition: 100}, 0)
    assert task.wants() == []
    done = task.process(limit) if limit else 0
    assert done == min(limit, len(times))
    if done < len(times):
        assert task.take_commit().positions == {partition: 7 + 3 * done}
    elif limit > len(times):
        assert task.take_commit().positions == {partition: 100}


def test_a_commit_request_stops_after_the_record() -> None:
    def run(context: Any, record: Record) -> None:
        if record.value == "commit":
            context.commit()
        context.forward(record)

    task = open_task(one_node(run))
    task.feed(batch("in", ("k", "a", 0), ("k", "commit", 0), ("k", "b", 0)))
    assert task.process(10) == 2
    assert task.commit_requested
    made = task.take_commit()
    assert made.positions == {TopicPartition("in", 0): 2}
    assert [each.values for each in made.outputs] == [[b"a", b"commit"]]
    assert not task.commit_requested
    assert task.process(10) == 1
    assert values(task) == ["b"]


def test_outputs_are_taken_once_and_their_size_is_known() -> None:
    task = open_task(one_node(Pass))
    assert task.output_bytes() == 0
    task.feed(batch("in", ("k", "v" * 1000, 0)))
    task.process(1)
    assert 1000 <= task.output_bytes() <= 1100
    assert values(task) == ["v" * 1000]
    assert task.output_bytes() == 0
    assert values(task) == []


# ---------------------------------------------------------------- forwarding


def tree(run: Any) -> Topology:
    """P -> (a, b) -> sink; a and b put their names before what they get."""
    topology = Topology().add_source("in", "in").add_processor("p", lambda: Calling(run), "in")
    for name in "ab":
        topology.add_processor(name, lambda: Calling(lambda context, record: [
            context.forward(record.with_value(f"{context.node}{record.value}{number}")) for number in "12"
        ]), "p")  # fmt: skip
    return topology.add_sink("out", "out", ["a", "b"])


@pytest.mark.parametrize(
    ("to", "expected"),
    [(None, ["ax1", "ax2", "bx1", "bx2", "after"]), ("a", ["ax1", "ax2", "after"]), ("b", ["bx1", "bx2", "after"])],
)
def test_forward_goes_depth_first_to_all_or_to_one(to: str | None, expected: list[str]) -> None:
    order: list[str] = []

    def run(context: Any, record: Record) -> None:
        context.forward(record, to)
        order.extend([*values(task), "after"])

    task = open_task(tree(run))
    task.feed(batch("in", ("k", "x", 0)))
    task.process(1)
    assert order == expected


@pytest.mark.parametrize("children", [1, 2])
def test_forwarding_to_a_node_that_is_no_child_names_the_children(children: int) -> None:
    topology = (
        Topology().add_source("in", "in").add_processor("p", lambda: Calling(lambda c, r: c.forward(r, "q")), "in")
    )
    names = [f"child{number}" for number in range(children)]
    for name in names:
        topology.add_processor(name, Pass, "p")
    task = open_task(topology)
    task.feed(batch("in", ("k", "x", 0)))
    with pytest.raises(
        ProcessingError, match=f"node 'p' forwards to 'q', which is not a child of it; children: {', '.join(names)}"
    ):
        task.process(1)


def test_headers_in_a_dict_say_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"pairs of a name and bytes, found a dict; write tuple\(HEADERS.items\(\)\)"):
        Record("k", "v", 0).with_headers({"a": b"b"})  # type: ignore[arg-type]


def test_a_record_is_the_same_for_every_child_whatever_one_does() -> None:
    def own(context: Any, record: Record) -> None:
        assert record == Record("k", "x", 3, (("h", b"1"),))
        context.forward(record.with_headers((*record.headers, ("more", None))).with_key("other"))

    topology = Topology().add_source("in", "in")
    for name in "ab":
        topology.add_processor(name, lambda: Calling(own), "in")
    task = open_task(topology.add_sink("out", "out", ["a", "b"]))
    task.feed(batch("in", ("k", "x", 3, [("h", b"1")])))
    task.process(1)
    (made,) = task.take_outputs()
    assert made.headers == [(("h", b"1"), ("more", None))] * 2


def test_a_value_transformer_keeps_key_time_and_headers_and_cannot_forward() -> None:
    class Shout(ValueTransformer):
        def transform(self, key: Any, value: Any) -> Any:
            assert not hasattr(self.context, "forward")
            return f"{key}:{value}!"

    topology = Topology().add_source("in", "in").add_processor("p", Shout, "in").add_sink("out", "out", "p")
    task = open_task(topology)
    task.feed(batch("in", ("k", "x", 3, [("h", b"1")]), (None, None, 4)))
    task.process(2)
    (made,) = task.take_outputs()
    assert (made.keys, made.values, made.timestamps) == ([b"k", None], [b"k:x!", b"None:None!"], [3, 4])
    assert made.headers == [(("h", b"1"),), ()]


def test_a_context_tells_who_and_where_one_is() -> None:
    seen: dict[str, Any] = {}
    contexts: list[Any] = []

    def run(context: Any, record: Record) -> None:
        contexts.append(context)
        seen.update(
            application=context.application_id,
            task=context.task_id,
            node=context.node,
            metadata=tuple(context.record_metadata),
            wall=context.current_system_time_ms(),
            user=context.config["user"],
            idle=context.config["max_task_idle"],
        )

    task = open_task(one_node(run), wall_clock_ms=77, user={"limit": 3})
    task.feed(batch("in", ("k", "x", 5), offset=41))
    task.process(1)
    assert seen == {
        "application": "app", "task": "0_0", "node": "p", "metadata": ("in", 0, 41), "wall": 77, "user": {"limit": 3}, "idle": "0ms",
    }  # fmt: skip
    assert contexts[0].record_metadata is None


# ---------------------------------------------------------------- life of a processor


class Life(Processor):
    log: list[str] = []

    def init(self, context: Any) -> None:
        super().init(context)
        self.log.append(f"init {context.node}")

    def process(self, record: Record) -> None:
        self.context.forward(record)

    def close(self) -> None:
        self.log.append(f"close {self.context.node}")
        if self.context.node == "p":
            raise RuntimeError("cannot close")


@pytest.fixture
def life() -> Iterator[list[str]]:
    Life.log.clear()
    yield Life.log
    Life.log.clear()


def test_every_processor_is_closed_once_whatever_another_does(
    life: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    topology = Topology().add_source("in", "in").add_processor("p", Life, "in").add_processor("q", Life, "p")
    task = open_task(topology)
    assert life == ["init p", "init q"]
    task.close()
    task.close()
    assert sorted(life[2:]) == ["close p", "close q"]
    assert "task 0_0, node 'p': close raised RuntimeError: cannot close" in caplog.text


def test_a_store_that_nobody_connected_says_how_to(life: list[str]) -> None:
    def lost(context: Any, record: Record) -> None:
        context.get_store("s")

    topology = Topology().add_source("in", "in").add_processor("p", lambda: Calling(lost), "in")
    topology.add_processor("q", Pass, "p", stores=[key_value_store("s"), key_value_store("t")])
    task = open_task(topology)
    task.feed(batch("in", ("k", "x", 5)))
    with pytest.raises(
        ProcessingError, match=r"node 'p' is not connected to store 's'; connect it: topology\.connect\('p', 's'\)"
    ):
        task.process(1)


def test_an_unknown_store_lists_what_is_connected() -> None:
    class Lost(Processor):
        def init(self, context: Any) -> None:
            context.get_store("nowhere")

        def process(self, record: Record) -> None:
            pass

    with pytest.raises(
        TopologyError, match="node 'p' asks for store 'nowhere', which it is not connected to; connected: s"
    ):
        open_task(one_node(Lost, stores=[key_value_store("s")]))


def test_an_init_that_raises_is_named() -> None:
    class Broken(Processor):
        def init(self, context: Any) -> None:
            raise ValueError("no")

        def process(self, record: Record) -> None:
            pass

    with pytest.raises(ProcessingError, match="node 'p' in task 0_0: init raised ValueError: no"):
        open_task(one_node(Broken))


# ---------------------------------------------------------------- timestamps


def with_extractor(extractor: Any) -> Topology:
    topology = Topology().add_source("in", "in", timestamp_extractor=extractor).add_processor("p", Pass, "in")
    return topology.add_sink("out", "out", "p")


def stamped(task: Task) -> list[int]:
    return [time for each in task.take_outputs() for time in each.timestamps]


def test_an_invalid_timestamp_fails_and_names_the_extractors_that_do_not() -> None:
    task = open_task(one_node(Pass))
    task.feed(batch("in", ("k", "x", 5), ("k", "y", -1)))
    assert task.process(1) == 1
    with pytest.raises(
        Exception, match=r"topic 'in' partition 0 offset 1: .*invalid timestamp -1.*skip_on_invalid_timestamp"
    ):
        task.process(1)


def test_skip_on_invalid_timestamp_counts_and_moves_on() -> None:
    task = open_task(with_extractor(skip_on_invalid_timestamp))
    task.feed(batch("in", ("k", "x", -7), ("k", "x", 5), ("k", "y", -1), ("k", "x", 2), ("k", "x", -2)))
    task.process(10)
    assert stamped(task) == [5, 2]
    assert task.metrics()["in"].dropped == {"invalid_timestamp": 3}
    made = task.take_commit()
    assert made.positions == {TopicPartition("in", 0): 5}
    assert made.has_changed


def test_use_partition_time_on_invalid_timestamp() -> None:
    task = open_task(with_extractor(use_partition_time_on_invalid_timestamp))
    task.feed(batch("in", ("k", "x", 5), ("k", "y", -1), ("k", "x", 2), ("k", "z", -1)))
    task.process(10)
    assert stamped(task) == [5, 5, 2, 5]
    again = open_task(with_extractor(use_partition_time_on_invalid_timestamp), saved=task.engine_state())
    again.feed(batch("in", ("k", "y", -1), offset=4))
    again.process(10)
    assert stamped(again) == [5]
    fresh = open_task(with_extractor(use_partition_time_on_invalid_timestamp))
    fresh.feed(batch("in", ("k", "y", -1)))
    with pytest.raises(Exception, match="its partition has no time yet"):
        fresh.process(10)


def test_the_wall_clock_may_be_the_time_of_a_record() -> None:
    task = open_task(with_extractor(wall_clock_timestamp), wall_clock_ms=99)
    task.feed(batch("in", ("k", "x", 5)))
    task.process(10)
    assert stamped(task) == [99]


@given(st.lists(st.tuples(st.integers(-3, 9), st.integers(-3, 9)), max_size=8))
def test_an_extractor_gets_record_partition_time_and_wall_clock(records: list[tuple[int, int]]) -> None:
    calls: list[tuple[int, int, int]] = []

    def extract(record: Record, partition_time: int, wall_clock: int) -> int:
        calls.append((record.timestamp, partition_time, wall_clock))
        return int(record.value)

    task = open_task(with_extractor(extract), wall_clock_ms=42)
    task.feed(batch("in", *[("k", str(value), time) for time, value in records]))
    while task.process(1):
        pass
    highest, expected = -1, []
    for time, value in records:
        expected.append((time, highest, 42))
        highest = max(highest, value)
    assert calls == expected
    assert stamped(task) == [value for _, value in records if value >= 0]


# ---------------------------------------------------------------- sinks


def partitioned(choose: Any, **settings: Any) -> Task:
    topology = Topology().add_source("in", "in").add_sink("out", "out", "in", partitioner=choose)
    task = open_task(topology, partition_count=lambda topic: 4, **settings)
    task.feed(batch("in", ("a", "x", 0), ("b", "y", 1)))
    task.process(10)
    return task


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [(3, (3,)), ([0, 2], (0, 2)), (None, None), ((), ...)],
    ids=["one", "several", "default", "none"],
)
def test_a_partitioner_chooses_one_several_the_default_or_none(chosen: Any, kept: Any) -> None:
    task = partitioned(lambda topic, record, count: chosen if record.key == "b" else 1)
    (made,) = task.take_outputs()
    if kept is ...:
        assert (made.keys, made.partitions) == ([b"a"], [(1,)])
        assert task.metrics()["out"].dropped == {"no_partition": 1}
    else:
        assert (made.keys, made.partitions) == ([b"a", b"b"], [(1,), kept])


def test_a_partitioner_is_told_topic_record_and_count() -> None:
    calls: list[Any] = []
    partitioned(lambda *given: calls.append(given))
    assert calls == [("out", Record("a", "x", 0), 4), ("out", Record("b", "y", 1), 4)]


@pytest.mark.parametrize("wrong", [4, -1, [0, 9], "1", 1.5])
def test_a_partition_that_is_none_meets_the_production_handler(wrong: Any) -> None:
    def choose(topic: str, record: Record, count: int) -> Any:
        return wrong

    with pytest.raises(ProductionError, match="node 'out' while producing to topic 'out'"):
        partitioned(choose)
    task = partitioned(choose, production_handler=skip)
    assert not task.take_outputs()
    assert task.metrics()["out"].dropped == {"production": 2}


def test_a_sink_may_choose_the_topic_of_each_record() -> None:
    def choose(record: Record, metadata: Any) -> str:
        return f"to-{record.value}-{metadata.offset % 2}"

    task = open_task(Topology().add_source("in", "in").add_sink("out", choose, "in"))
    task.feed(batch("in", *[("k", value, 0) for value in "xyx"]))
    task.process(10)
    assert {made.topic: made.values for made in task.take_outputs()} == {"to-x-0": [b"x", b"x"], "to-y-1": [b"y"]}


def test_a_topic_chooser_that_chooses_nothing_is_named() -> None:
    task = open_task(Topology().add_source("in", "in").add_sink("out", lambda record, metadata: None, "in"))  # type: ignore[arg-type,return-value]
    task.feed(batch("in", ("k", "x", 0)))
    with pytest.raises(ProcessingError, match="sink 'out': its topic chooser returned None, expected a topic's name"):
        task.process(1)


@given(st.lists(st.tuples(st.sampled_from([None, "k"]), st.sampled_from([None, "v"]), st.booleans(), st.booleans())))
def test_columns_of_outputs_stay_beside_each_other(records: list[tuple[Any, Any, bool, bool]]) -> None:
    """Headers and partitions come with some records only, and from two sinks of one topic."""

    def run(context: Any, record: Record) -> None:
        context.forward(record, record.headers[0][0])

    topology = Topology().add_source("in", "in").add_processor("p", lambda: Calling(run), "in")
    topology.add_sink("plain", "out", "p")
    topology.add_sink("placed", "out", "p", partitioner=lambda topic, record, count: record.timestamp % count)
    topology.add_processor("bare", lambda: Calling(lambda c, r: c.forward(r.with_headers(()))), "p").add_sink(
        "s", "out", "bare"
    )
    task = open_task(topology, partition_count=lambda topic: 3)
    rows = [
        (key, value, time, [("bare" if bare else "placed" if placed else "plain", b"1")])
        for time, (key, value, bare, placed) in enumerate(records)
    ]
    task.feed(batch("in", *rows))
    task.process(len(rows) + 1)
    made = task.take_outputs()
    if not records:
        assert not made
        return
    (only,) = made
    assert only.timestamps == list(range(len(records)))
    assert only.keys == [None if key is None else b"k" for key, *_ in records]
    assert only.values == [None if value is None else b"v" for _, value, *_ in records]
    headers = only.headers or [()] * len(records)
    assert list(headers) == [() if bare else tuple(rows[at][3]) for at, (_, _, bare, _) in enumerate(records)]
    chosen = only.partitions or [None] * len(records)
    assert chosen == [(at % 3,) if placed and not bare else None for at, (_, _, bare, placed) in enumerate(records)]


# ---------------------------------------------------------------- counts


def test_records_in_and_out_are_counted_for_each_node() -> None:
    def run(context: Any, record: Record) -> None:
        context.forward(record)
        context.forward(record, "b")
        context.metrics.drop("late", 2)

    task = open_task(tree(run))
    task.feed(batch("in", ("k", "x", 0), ("k", "y", 0)))
    task.process(10)
    counted = {name: (each.records_in, each.records_out, dict(each.dropped)) for name, each in task.metrics().items()}
    assert counted == {
        "in": (2, 2, {}), "p": (2, 4, {"late": 4}), "a": (2, 4, {}), "b": (4, 8, {}), "out": (12, 12, {}),
    }  # fmt: skip
    assert task.records_in == 2


class ForwardsWhenClosed(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)

    def close(self) -> None:
        self.context.forward(Record("k", "too late", 0))


def test_forwarding_in_close_is_told_and_goes_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    task = open_task(one_node(ForwardsWhenClosed))
    task.close()
    assert task.take_outputs() == []
    assert "node 'p': close raised TopologyError: it forwards a record, which nothing would commit" in caplog.text


# ---------------------------------------------------------------- serdes that are wrong


class Column(StrSerde):
    """Reads columns by a function of the user's."""

    def __init__(self, read: Callable[[list[str | None]], Any]) -> None:
        self.read = read

    def deserialize_column(self, column: Sequence[bytes | None]) -> list[str | None]:
        found: list[str | None] = self.read(super().deserialize_column(column))
        return found


WRONG: dict[str, tuple[Callable[[list[str | None]], Any], str]] = {
    "shorter": (lambda read: read[:-1], "a list of 2"),
    "empty": (lambda read: [], "a list of 0"),
    "longer": (lambda read: [*read, "more"], "a list of 4"),
    "nothing": (lambda read: None, "NoneType None"),
    "an iterator": (iter, "list_iterator"),
    "a dict": (lambda read: dict.fromkeys(range(3)), "dict"),
    "text": (lambda read: "abc", "str 'abc'"),
}


@pytest.mark.parametrize("what", ["key", "value"])
@pytest.mark.parametrize(("read", "found"), WRONG.values(), ids=list(WRONG))
def test_a_serde_that_returns_another_column_is_named(what: str, read: Callable[[Any], Any], found: str) -> None:
    serdes: dict[str, Any] = {f"{what}_serde": Column(read)}
    topology = Topology().add_source("in", "in", **serdes).add_processor("p", Pass, "in").add_sink("out", "out", "p")
    task = open_task(topology, deserialization_handler=skip)
    task.feed(batch("in", *[("k", "v", 3)] * 3))
    pattern = rf"application 'app', task 0_0, node 'in', in-0: the {what} serde .*Column is wrong: .* a column of 3, returned {found}"
    with pytest.raises(SerdeError, match=pattern):
        task.process(10)
    assert task.take_commit().positions == {TopicPartition("in", 0): 0}


def test_a_column_may_be_a_tuple() -> None:
    topology = Topology().add_source("in", "in", value_serde=Column(tuple)).add_processor("p", Pass, "in")
    task = open_task(topology.add_sink("out", "out", "p"))
    task.feed(batch("in", *[("k", "v", 3)] * 3))
    assert (task.process(10), values(task)) == (3, ["v"] * 3)


def test_a_global_store_is_not_filled_by_such_a_serde() -> None:
    topology = Topology().add_global_store(
        key_value_store("rates"), "source", "rates", "fill", Pass, value_serde=Column(iter)
    )
    with (
        TopologyTestDriver(topology) as driver,
        pytest.raises(SerdeError, match="node 'source', rates-0: the value serde .*Column is wrong"),
    ):
        driver.pipe("rates", "k", "v")


class Writing(StrSerde):
    """Writes what a function of the user's returns."""

    def __init__(self, write: Callable[[str], Any]) -> None:
        self.write = write

    def serialize(self, value: str) -> bytes:
        written: bytes = self.write(value)
        return written

    def serializer(self) -> Callable[[str], bytes]:
        return self.write


@pytest.mark.parametrize("written", [None, "text", 7, ["list"]])
@pytest.mark.parametrize("what", ["key", "value"])
def test_a_sink_whose_serde_writes_no_bytes_produces_nothing(what: str, written: Any) -> None:
    serdes: dict[str, Any] = {f"{what}_serde": Writing(lambda value: written)}
    topology = Topology().add_source("in", "in").add_processor("p", Pass, "in").add_sink("out", "out", "p", **serdes)
    task = open_task(topology)
    task.feed(batch("in", ("k", "v", 3)))
    with pytest.raises(
        ProductionError,
        match=r"node 'out' while producing to topic 'out'.* serde .*Writing is wrong: for '\w' it wrote \w+ .*, expected bytes",
    ):
        task.process(1)
    assert task.take_outputs() == []


@pytest.mark.parametrize("written", [None, "text", 7])
@pytest.mark.parametrize("what", ["key", "value"])
def test_a_store_whose_serde_writes_no_bytes_takes_nothing(what: str, written: Any) -> None:
    def put(context: Any, record: Record) -> None:
        context.get_store("s").put(record.key, record.value)

    serdes: dict[str, Any] = {f"{what}_serde": Writing(lambda value: written)}
    task = open_task(one_node(put, stores=[key_value_store("s", **serdes)]))
    task.feed(batch("in", ("k", "v", 3)))
    with pytest.raises(
        ProcessingError, match=rf"store 's': cannot write the {what}.* serde .*Writing is wrong: .*, expected bytes"
    ):
        task.process(1)


def test_what_is_as_good_as_bytes_is_written() -> None:
    topology = one_node(Pass, sink=False).add_sink(
        "out", "out", "p", value_serde=Writing(lambda value: bytearray(value.encode()))
    )
    task = open_task(topology)
    task.feed(batch("in", ("k", "v", 3)))
    task.process(1)
    assert [type(value) for each in task.take_outputs() for value in each.values] == [bytes]


def test_a_clock_that_was_set_back_lets_the_task_go_half_as_fast_also_through_reopenings() -> None:
    """And so in batches, whose clock is the driver's: else schedules rested until it had caught up, for a day."""
    day = 86_400_000
    task = open_task(one_node(Pass), wall_clock_ms=day)
    task.plan({}, 1_000)  # the clock was a day ahead
    assert task.wall_clock == day
    for now, wall in ((1_101, 50), (1_102, 51), (500, 51), (700, 151)):  # and is set back once more
        task = open_task(one_node(Pass), wall_clock_ms=now, saved=task.engine_state())
        task.plan({}, now)
        task.plan({}, now)
        assert task.wall_clock == day + wall
    task.plan({}, 2 * day)
    assert task.wall_clock == 2 * day
    assert b"driver" not in task.engine_state()


def test_an_hour_by_the_task_is_two_by_a_driver_that_is_behind_until_it_has_caught_up() -> None:
    progress = TaskProgress(10_000)
    progress.move_wall_clock(4_000)
    assert [progress.driver_time_of(at) for at in (9_000, 10_000, 11_000, 16_000, 17_000)] == [
        4_000, 4_000, 6_000, 16_000, 17_000,
    ]  # fmt: skip
    for now in (4_001, 9_000, 15_999, 16_000, 16_001):
        progress.move_wall_clock(now)
    assert progress.wall_clock == 16_001
