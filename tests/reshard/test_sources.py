"""The line between records by the old and by the new number of partitions, and other partitioners than Kafka's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    ConfigError,
    DeadLetter,
    IncompatibleStateError,
    OutputBatch,
    Processor,
    Record,
    TopicPartition,
    Topology,
    TopologyError,
    default_partitioner,
    key_value_store,
)
from penstock.plugins.dsl import StreamsBuilder, within
from penstock.plugins.engine.program.dead_letters import Selection, replay
from penstock.plugins.engine.program.letter_targets import ApplicationTargets
from penstock.plugins.engine.program.stored_id import read_stored, write_stored
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.transfer.reshard import accept, plan_reshard, reshard, undo

from ..lost_commits import lose_commits
from .growing import grow
from .programs import Append, Numbered
from .runs import lease, new_log, outputs, produce, resharded, run, settings

KEYS = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]


def appending(directory: Path, topic: str = "in") -> Application:
    topology = Topology().add_source("in", topic).add_processor("keep", Append, "in", stores=[key_value_store("kept")])
    return Application("shop", topology.add_sink("out", "out", "keep"), **settings(directory, "topic:"))


def rows(first: int, last: int) -> list[tuple[str, str, int]]:
    return [(key, f"{number},", number) for number in range(first, last) for key in KEYS]


def always(directory: Path, last: int) -> Any:
    log = new_log({"in": 7, "out": 1})
    produce(log, "in", rows(0, last))
    run(appending(directory / "always"), log)
    return outputs(log)


@pytest.fixture
def log(tmp_path: Path) -> MemoryLog:
    """Return a log with a topic of 4 partitions, most of which is processed, and an empty one with 7."""
    log = new_log({"in": 4, "new": 7, "out": 1})
    produce(log, "in", rows(0, 3))
    run(appending(tmp_path), log)
    produce(log, "in", rows(3, 5))
    return log


def test_a_topic_that_grows_and_is_written_to_while_the_old_records_are_processed(
    log: MemoryLog, tmp_path: Path
) -> None:
    app = appending(tmp_path)
    grow(log, "in", 7)
    is_written: list[str] = []

    def step(text: str) -> None:
        if not is_written:
            is_written.append(text)
            produce(log, "in", rows(5, 8))

    reshard(plan_reshard(app, log, 7), log, lease(app, log), step)
    run(app, log)
    produce(log, "in", rows(8, 9))
    run(app, log)
    assert outputs(log) == always(tmp_path, 9)


class Fails(Append):
    """Fails for a value that is bad."""

    def process(self, record: Record) -> None:
        if record.value.startswith("bad"):
            raise ValueError(record.value)
        super().process(record)


@pytest.mark.parametrize("is_beside_a_run", [False, True])
def test_letters_of_before_a_topic_grew_go_where_the_state_of_their_keys_is(
    is_beside_a_run: bool, tmp_path: Path
) -> None:
    """Those of after it, and of topics that did not grow, go back into the partition where they were read."""
    log = new_log({"in": 4, "other": 2, "late": 2, "out": 1, "dead": 1})
    key = next(each for each in map(str.encode, KEYS) if default_partitioner(each, 2) == 1)
    made = []
    for keep in (Fails, Append):
        topology = Topology().add_source("in", "in").add_processor("keep", keep, "in", stores=[key_value_store("kept")])
        topology.add_sink("out", "out", "keep").add_source("beside", "other").add_processor("fails", Fails, "beside")
        topology.add_source("late", "late").add_processor("of-late", Append, "late", stores=[key_value_store("later")])
        made.append(Application("shop", topology, processing_handler=DeadLetter("dead"),
                                **settings(tmp_path, "topic:")))  # fmt: skip
    fails, mended = made
    bad = [(key, "bad,", 1) for key in KEYS]
    produce(log, "in", [(key, "1,", 0) for key in KEYS] + bad)
    log.append(OutputBatch("other", [key] * 2, [b"bad", b"good"], [1, 1], partitions=[(0,)] * 2))
    run(fails, log)
    for topic in ("in", "late"):
        grow(log, topic, 7)
        resharded(fails, log, 7)
        accept(fails, log, lease(fails, log))
    produce(log, "in", [(key, "2,", 2) for key in KEYS] + bad)
    beside = run(fails, log)
    assert beside.id == "shop-layout-3"
    done = replay(log, "dead", Selection(), targets=ApplicationTargets(beside if is_beside_a_run else mended, log))
    assert (sum(each.records for each in done.sent), done.held) == (16, {})
    run(mended, log)
    last = {key: values[-1][0] for key, values in outputs(log).items()}
    assert last == {key.encode(): b"1,2,bad,bad," for key in KEYS}
    partitions = [TopicPartition("other", number) for number in range(2)]
    assert list(log.end_offsets(partitions).values()) == [4, 0], "its writers choose partitions in their own way"


class Keyed(Processor):
    """Gives each record its value's first letter as the key."""

    def process(self, record: Record) -> None:
        self.context.forward(record.with_key(record.value[0]))


@pytest.mark.parametrize("is_beside_a_run", [False, True])
def test_letters_go_to_the_topics_that_are_read_in_place_of_theirs(is_beside_a_run: bool, tmp_path: Path) -> None:
    """They could not go back, or went to a topic that nobody read, and counted as replayed."""
    log = new_log({"in": 2, "new": 5, "dead": 1, "out": 1})

    def program(first: Any, then: Any, topic: str) -> Application:
        topology = Topology().add_source("in", topic).add_processor("first", first, "in")
        topology.add_repartition("between", "first").add_processor(
            "then", then, "between", stores=[key_value_store("kept")]
        )
        topology.add_sink("out", "out", "then")
        return Application("shop", topology, processing_handler=DeadLetter("dead"), **settings(tmp_path, "topic:"))

    class FailsFirst(Keyed):
        def process(self, record: Record) -> None:
            if record.value.startswith("worse"):
                raise ValueError(record.value)
            super().process(record)

    values = ["good,", "bad,", "worse,"]
    produce(log, "in", [(key, value, 1) for key in KEYS for value in values])
    run(program(FailsFirst, Fails, "in"), log)
    mended = program(Keyed, Append, "new")
    resharded(mended, log, 5, sources={"in": "new"})
    accept(mended, log, lease(mended, log))
    beside = run(mended, log)
    targets = ApplicationTargets(beside if is_beside_a_run else mended, log)
    assert targets.refuses("in") is targets.refuses("shop-between-repartition") is None  # so the console has a button
    assert "no source of application" in str(targets.refuses("shop-other-repartition"))
    done = replay(log, "dead", Selection(), targets=targets)
    assert done.held == {}
    assert {each.to: each.records for each in done.sent} == {"new": 7, "shop-layout-2-between-repartition": 7}
    run(mended, log)
    last = {key: values[-1][0] for key, values in outputs(log).items()}
    assert last == {value[:1].encode(): value.encode() * len(KEYS) for value in values}


def through_topic(directory: Path, between: str = "between") -> Application:
    """Return an application that keeps what it has written to an ordinary topic, and reads there."""
    topology = Topology().add_source("in", "in").add_sink("to-between", between, "in").add_source("again", between)
    topology.add_processor("keep", Append, "again", stores=[key_value_store("kept")]).add_sink("out", "out", "keep")
    return Application("shop", topology, **settings(directory, "topic:"))


@pytest.mark.parametrize("between", ["between", "new"])
def test_a_topic_that_the_application_writes_itself(between: str, tmp_path: Path) -> None:
    """It writes there by the new number while it processes what is old: that is for the new layout."""
    log = new_log({"in": 4, "between": 4, "new": 7, "out": 1})
    produce(log, "in", rows(0, 3))
    run(through_topic(tmp_path), log)
    produce(log, "in", rows(3, 5))
    if between == "between":
        grow(log, "between", 7)
    application = through_topic(tmp_path, between)
    resharded(application, log, 7, sources={"between": "new"} if between == "new" else {})
    produce(log, "in", rows(5, 6))
    run(application, log)
    assert outputs(log) == always(tmp_path, 6)


def test_a_topic_is_not_replaced_that_the_program_goes_on_writing_to(tmp_path: Path) -> None:
    log = new_log({"in": 4, "between": 4, "new": 7, "out": 1})
    produce(log, "in", rows(0, 3))
    run(through_topic(tmp_path), log)
    with pytest.raises(
        ConfigError, match=r"sink 'to-between' writes to topic 'between', .* would not read: let it write"
    ):
        resharded(through_topic(tmp_path), log, 7, sources={"between": "new"})


def test_an_interrupted_run_keeps_the_ends_that_it_noted(log: MemoryLog, tmp_path: Path) -> None:
    """Records by the new number come after the first run: the second one must not take them for old ones."""
    app = appending(tmp_path)
    grow(log, "in", 7)

    def fail(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshard(plan_reshard(app, log, 7), log, lease(app, log), fail)
    produce(log, "in", rows(5, 8))
    resharded(app, log, 7)
    run(app, log)
    assert outputs(log) == always(tmp_path, 8)


@pytest.mark.parametrize("lost", ["shop", "shop-layout-2"])
def test_no_way_back_where_positions_of_a_layout_are_gone(log: MemoryLog, tmp_path: Path, lost: str) -> None:
    app = appending(tmp_path)
    resharded(app, log, 7, sources={"in": "new"})
    lose_commits(log, lost)
    stored = read_stored("shop", log)
    with pytest.raises(IncompatibleStateError, match="cannot go back to the layout before: committed positions in "):
        undo(app, log, lease(app, log))
    assert read_stored("shop", log) == stored


def test_a_topic_that_has_grown_and_was_written_to(log: MemoryLog, tmp_path: Path) -> None:
    grow(log, "in", 7)
    produce(log, "in", rows(5, 6))
    with pytest.raises(IncompatibleStateError, match=r"in-\d.* has records, so it is unknown which records"):
        resharded(appending(tmp_path), log, 7)
    assert read_stored("shop", log).id == "shop"


def test_a_replaced_topic_that_is_written_to_meanwhile(log: MemoryLog, tmp_path: Path) -> None:
    """Nothing is changed, and the next run takes the later records along."""
    app, written = appending(tmp_path, "new"), rows(5, 6)

    def step(text: str) -> None:
        produce(log, "in", written)
        written.clear()

    with pytest.raises(IncompatibleStateError, match=r"records were written to in-\d \(\d+ to \d+\)"):
        reshard(plan_reshard(app, log, 7, sources={"in": "new"}), log, lease(app, log), step)
    resharded(app, log, 7, sources={"in": "new"})
    produce(log, "new", rows(6, 8))
    run(app, log)
    assert outputs(log) == always(tmp_path, 8)


def test_a_topic_that_was_read_before(log: MemoryLog, tmp_path: Path) -> None:
    resharded(appending(tmp_path), log, 7, sources={"in": "new"})
    with pytest.raises(IncompatibleStateError, match="its layout before is still kept"):
        resharded(appending(tmp_path), log, 4, sources={"new": "in"})
    undo(appending(tmp_path), log, lease(appending(tmp_path), log))
    run(appending(tmp_path), log)
    resharded(appending(tmp_path), log, 7, sources={"in": "new"})
    accept(appending(tmp_path, "new"), log, lease(appending(tmp_path), log))
    with pytest.raises(ConfigError, match="has read topic 'in' before"):
        resharded(appending(tmp_path), log, 4, sources={"new": "in"})


def test_topics_that_are_joined_change_together(log: MemoryLog, tmp_path: Path) -> None:
    def joined(*topics: str) -> Application:
        builder = StreamsBuilder()
        one, other = (builder.stream(topic) for topic in topics)
        pairs = one.join(other, lambda left, right: left + right, within("1s", grace="0s"))
        pairs.to("out")
        return Application("joining", builder, **settings(tmp_path, "topic:"))

    log.create_topic("other", 4)
    run(joined("in", "other"), log)
    before = log.topics().keys()
    with pytest.raises(TopologyError, match=r"'new' has 7.*'other' has 4|'other' has 4.*'new' has 7"):
        resharded(joined("new", "other"), log, 7, sources={"in": "new"})
    assert log.topics().keys() == before


def test_a_sub_topology_whose_number_stays(tmp_path: Path) -> None:
    """Its tasks stay as they are, with what is in them."""

    def app(topic: str) -> Application:
        topology = Topology().add_source("in", topic).add_repartition("again", "in", partitions=3)
        topology.add_processor("count", Numbered, "again", stores=[key_value_store("kept")])
        return Application("shop", topology.add_sink("out", "out", "count"), **settings(tmp_path, "topic:"))

    log = new_log({"in": 4, "new": 7, "out": 1})
    produce(log, "in", rows(0, 2))
    run(app("in"), log)
    resharded(app("new"), log, 7, sources={"in": "new"})
    produce(log, "new", rows(2, 3))
    run(app("new"), log)
    numbers = [int(value or b"") for sent in outputs(log).values() for value, _ in sent]
    tasks = {default_partitioner(key.encode(), 3) for key in KEYS}
    assert sum(number == 1 for number in numbers) == len(tasks)
    assert len(numbers) == 3 * len(KEYS)


def by_length(topic: str, record: Record, partitions: int) -> int:
    """Return the partition of a key in topics whose writers go by its length."""
    return len(record.key) % partitions


def produce_by_length(log: MemoryLog, topic: str, records: list[tuple[str, str, int]]) -> None:
    partitions = log.topic(topic).partitions
    for key, value, time in records:
        batch = OutputBatch(topic, [key.encode()], [value.encode()], [time], None, [[len(key) % partitions]])
        log.append(batch)


def test_a_partitioner_of_the_writers(tmp_path: Path) -> None:
    log, app = new_log({"in": 4, "new": 7, "out": 1}), appending(tmp_path, "new")
    produce_by_length(log, "in", rows(0, 3))
    run(appending(tmp_path), log)
    with pytest.raises(
        IncompatibleStateError, match="store 'kept' is not divided by key: task 0_0, key b'dddd': it be"
    ):
        resharded(app, log, 7, sources={"in": "new"})
    resharded(app, log, 7, sources={"in": "new"}, partitioners={"in": by_length})
    produce_by_length(log, "new", rows(3, 6))
    run(app, log)
    assert outputs(log) == always(tmp_path, 6)


def test_a_partitioner_that_raises_for_the_new_number(log: MemoryLog, tmp_path: Path) -> None:
    def broken(topic: str, record: Record, partitions: int) -> int | None:
        if partitions == 7:
            raise ZeroDivisionError("seven")
        return None

    with pytest.raises(IncompatibleStateError, match="store 'kept', key b'.*ZeroDivisionError for 7 partitions: seven"):
        resharded(appending(tmp_path), log, 7, sources={"in": "new"}, partitioners={"in": broken})
    assert read_stored("shop", log).id == "shop"
    run(appending(tmp_path), log)


@pytest.mark.parametrize("by", ["key", "key and window"])
def test_windowed_keys_of_either_kind_of_writers(by: str, tmp_path: Path) -> None:
    """Kafka Streams partitions them by the key alone, other clients by key and window: the old layout shows which."""

    def app(directory: Path, topic: str) -> Application:
        serde = "windowed:str:1s"
        topology = Topology().add_source("in", topic, key_serde=serde, value_serde="str")
        topology.add_processor("keep", Append, "in", stores=[key_value_store("kept", key_serde=serde)])
        return Application(
            "shop", topology.add_sink("out", "out", "keep", key_serde=serde), **settings(directory, "topic:")
        )

    def send(log: MemoryLog, topic: str, records: list[tuple[str, str, int]]) -> None:
        for key, value, time in records:
            for window in (0, 1):
                names: list[bytes | None] = [key.encode() + bytes(7) + bytes([window])]
                hashed: list[bytes | None] | None = [key.encode()] if by == "key" else None
                log.append(OutputBatch(topic, names, [value.encode()], [time], hashed=hashed))

    log, whole = new_log({"in": 4, "new": 7, "out": 1}), new_log({"in": 7, "out": 1})
    send(log, "in", rows(0, 3))
    run(app(tmp_path, "in"), log)
    send(log, "in", rows(3, 4))
    resharded(app(tmp_path, "in"), log, 7, sources={"in": "new"})
    send(log, "new", rows(4, 6))
    run(app(tmp_path, "new"), log)
    send(whole, "in", rows(0, 6))
    run(app(tmp_path / "always", "in"), whole)
    assert outputs(log) == outputs(whole)


def test_a_repartition_topic_with_a_partitioner(tmp_path: Path) -> None:
    """Its sink says how the store behind it is divided."""

    def app(topic: str) -> Application:
        topology = Topology().add_source("in", topic).add_repartition("again", "in", partitioner=by_length)
        topology.add_processor("keep", Append, "again", stores=[key_value_store("kept")])
        return Application("shop", topology.add_sink("out", "out", "keep"), **settings(tmp_path, "topic:"))

    log = new_log({"in": 4, "new": 7, "out": 1})
    produce(log, "in", rows(0, 3))
    run(app("in"), log)
    produce(log, "in", rows(3, 4))
    done = resharded(app("new"), log, 7, sources={"in": "new"})
    assert sum(done.rows.values()) == len(KEYS)
    produce(log, "new", rows(4, 6))
    run(app("new"), log)
    assert outputs(log) == always(tmp_path, 6)


def chosen_by_length(topic: str, record: Record, count: int) -> int:
    return len(record.key) % count


def test_letters_whose_writers_have_a_partitioner_wait_until_it_is_named(tmp_path: Path) -> None:
    """They went by the hash of their keys, to tasks without the state of these, and counted as replayed."""
    log = new_log({"in": 4, "new": 7, "newer": 5, "other": 2, "dead": 1, "out": 1})

    def program(keep: Any, topic: str) -> Application:
        topology = (
            Topology().add_source("in", topic).add_processor("keep", keep, "in", stores=[key_value_store("kept")])
        )
        topology.add_source("other", "other").add_processor("beside", Append, "other", stores=[key_value_store("more")])
        topology.add_sink("out", "out", "keep")
        return Application("shop", topology, processing_handler=DeadLetter("dead"), **settings(tmp_path, "topic:"))

    def write(topic: str, values: list[str]) -> None:
        count = log.topic(topic).partitions
        for value, key in product(values, KEYS):
            place: list[Sequence[int] | None] = [[len(key) % count]]
            log.append(OutputBatch(topic, [key.encode()], [value.encode()], [0], partitions=place))

    write("in", ["1,", "bad,"])
    run(program(Fails, "in"), log)
    by_length = {"in": chosen_by_length}
    resharded(program(Fails, "in"), log, 7, sources={"in": "new"}, partitioners=by_length)
    write("new", ["2,", "bad,"])
    run(program(Fails, "new"), log)
    accept(program(Fails, "new"), log, lease(program(Fails, "new"), log))
    grow(log, "other", 3)
    resharded(program(Fails, "new"), log, 3)  # this one is not told again
    mended = program(Append, "new")
    done = replay(log, "dead", Selection(), targets=ApplicationTargets(mended, log))
    assert (sum(each.records for each in done.sent), list(done.held.values())) == (7, [7]), (
        "those of the new topic went"
    )
    ((_, why),) = done.held
    assert "--partitioner" in why
    with pytest.raises(ConfigError, match="a partitioner of topic 'out' was given, and no source"):
        ApplicationTargets(mended, log, {"out": chosen_by_length})
    targets = ApplicationTargets(mended, log, by_length)
    done = replay(log, "dead", Selection(), targets=targets)
    assert (sum(each.records for each in done.sent), done.held) == (7, {})
    run(mended, log)
    last = {key: values[-1][0] for key, values in outputs(log).items()}
    assert last == {key.encode(): b"1,2,bad,bad," for key in KEYS}


@pytest.mark.parametrize("goes_back", [False, True])
def test_a_program_of_before_two_reshardings_does_not_read_its_topic_again(goes_back: bool, tmp_path: Path) -> None:
    """It read all of it once more, where it had as many partitions as the present one; and its letters waited."""
    log = new_log({"in": 4, "new": 7, "newer": 4, "out": 1})
    run(appending(tmp_path), log)
    resharded(appending(tmp_path), log, 7, sources={"in": "new"})
    accept(appending(tmp_path), log, lease(appending(tmp_path), log))
    now = appending(tmp_path, "new")
    resharded(now, log, 4, sources={"new": "newer"})
    if goes_back:
        undo(now, log, lease(now, log))
    topic = "new" if goes_back else "newer"
    with pytest.raises(IncompatibleStateError, match=f"reads topic '{topic}' in place of 'in' since"):
        run(appending(tmp_path), log)
    assert ApplicationTargets(appending(tmp_path, topic), log).topic_now("in") == topic
    # Earlier versions noted the replacements of the last resharding alone.
    stored = replace(read_stored("shop", log), sources={}, left=["in"])
    write_stored("shop", lease(now, log), stored)
    with pytest.raises(IncompatibleStateError, match="reads topic another one in place of 'in' since"):
        run(appending(tmp_path), log)
