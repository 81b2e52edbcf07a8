"""Replaying dead letters: each goes back once, as it was, whatever was selected, cut off or killed on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Application,
    Commit,
    Failure,
    Processor,
    Stage,
    Topology,
    Windowed,
    default_partitioner,
    key_value_store,
    run,
)
from penstock.errors import ConfigError, FencedError, UnknownTopicError
from penstock.log import Log
from penstock.plugins.engine.program.dead_letters import (
    Letter,
    Replay,
    Replayed,
    Selection,
    count_letters,
    read_letters,
    replay,
)
from penstock.plugins.engine.program.letter_targets import ApplicationTargets
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.operate.console.letters import _latest
from penstock.program.serdes import resolve_serde
from penstock.record import Headers, OutputBatch, Record, RecordBatch, TopicPartition
from penstock.task.dead_letter import letter_headers

from ..runtime.faults import FAULTS, Crash, FaultyLog

ERRORS = [ValueError("v"), KeyError("k"), TimeoutError("t")]
SOURCES = ["a", "b"]
LATE = "late"
"""A topic that is not there at first."""
LETTERS = st.tuples(st.integers(0, 1), st.sampled_from([*SOURCES, LATE]), st.sampled_from(ERRORS))


class Ignores(Processor):
    def process(self, record: Record) -> None:
        pass


PLACE = TopicPartition("dead", 0)
HEADERS: Headers = (("trace", b"\xff"), ("trace", None))


class OneByOne(FaultyLog):
    """A log whose batches of letters have one each, as of letters that are far from each other."""

    def fetch(self, partition: TopicPartition, start: int, end: int, max_bytes: int) -> list[RecordBatch]:
        return super().fetch(partition, start, min(end, start + 1) if partition.topic == "dead" else end, max_bytes)


def dead_letter_log(config_of_b: Mapping[str, str] | None = None, kind: type[FaultyLog] = FaultyLog) -> FaultyLog:
    log = kind()
    for name, partitions in (("a", 3), ("b", 1), ("dead", 2), ("elsewhere", 2)):
        log.create_topic(name, partitions, config_of_b if name == "b" else None)
    return log


def letter(log: Log, number: int, partition: int, source: str, error: Exception, from_partition: int = 0) -> None:
    append(log, partition, [(number, source, error)], from_partition)


def append(log: Log, partition: int, letters: Sequence[tuple[int, str, Exception]], from_partition: int = 0) -> None:
    """Append letters in one batch."""
    batch = OutputBatch("dead", [], [], [], [], [[partition]] * len(letters))
    for number, source, error in letters:
        value = b"%d" % number
        failure = Failure(Stage.PROCESSING, error, "node", "0_0", source, from_partition, number, b"k", value, HEADERS)
        batch.keys.append(b"k")
        batch.values.append(value)
        batch.timestamps.append(number)
        assert batch.headers is not None
        batch.headers.append(letter_headers(failure))
    log.append(batch)


def at_offset(offset: int) -> Letter:
    return Letter("dead", 0, offset, None, None, 0, (), None)


def values(log: Log, *topics: str) -> list[int]:
    found = []
    for topic in topics:
        for number in range(log.topics()[topic].partitions):
            partition = TopicPartition(topic, number)
            for batch in log.fetch(partition, 0, log.end_offsets([partition])[partition], 1 << 30):
                found += [int(value or b"") for value in batch.values]
    return found


STEPS = st.tuples(
    st.sampled_from([False, False, True]),
    st.lists(LETTERS, max_size=6),
    st.sampled_from([(), ("ValueError",), ("builtins.KeyError", "TimeoutError")]),
    st.sampled_from([(), ("a",)]),
    st.sampled_from([None, None, 1]),
    st.sampled_from([None, None, 1, 3]),
    st.sampled_from(["", "", "before commit", "after commit"]),
)


@given(st.lists(STEPS, max_size=6))
def test_each_letter_is_sent_once(
    steps: list[
        tuple[bool, list[tuple[int, str, Exception]], tuple[str, ...], tuple[str, ...], int | None, int | None, str]
    ],
) -> None:
    """Also of a topic that was deleted and made again: what was replayed of the one before says nothing of its letters.

    Topic "b" refuses numbers from 100 on until it is made again.
    """
    log = dead_letter_log({"max.message.bytes": "3"})
    numbers = (each + 100 * (each % 3 == 0) for each in count())
    made, there, gone = set[int](), set[int](), set[int]()
    for is_made_again, letters, exceptions, sources, partition, limit, fault in steps:
        if is_made_again:
            gone |= there - set(values(log, *SOURCES))
            there.clear()
            log.delete_topic("dead")
            log.create_topic("dead", 2)
        for each in letters:
            letter(log, number := next(numbers), *each)
            there.add(number)
            made.add(number)
        selection = Selection(exceptions, sources, partition)
        before = Counter(values(log, *SOURCES))
        selected = {each.offset + 1000 * each.partition: each for each in read_letters(log, "dead", selection)}
        waiting = [each for each in selected.values() if not before[each.timestamp] and each.source != LATE]
        refused = [each for each in waiting if each.source == "b" and each.timestamp > 99]
        waiting = [each for each in waiting if each not in refused]
        would = replay(log, "dead", selection, limit=limit, dry_run=True)
        FAULTS.clear()
        if fault:
            FAULTS.plan(fault)
        try:
            done = replay(log, "dead", selection, limit=limit)
        except Crash:
            continue
        finally:
            FAULTS.clear()
        sent = Counter(values(log, *SOURCES)) - before
        assert sum(sent.values()) == min(len(waiting), limit or len(waiting))
        assert set(sent) <= {each.timestamp for each in waiting}
        # A copy of what is remembered serves who only looks; after a crash it may be behind.
        if not refused and not any(step[-1] for step in steps):
            assert would == done
    replay(log, "dead", Selection())
    small = values(log, "b")
    log.delete_topic("b")
    for topic in ("b", LATE):
        log.create_topic(topic, 1)
    replay(log, "dead", Selection())
    sent_once = made - gone
    assert Counter([*small, *values(log, *SOURCES, LATE)]) == Counter(sent_once)
    assert {waiting for _, waiting in count_letters(log, "dead").values()} <= {0}
    replay(log, "dead", Selection(), again=True)
    assert Counter([*small, *values(log, *SOURCES, LATE)]) == Counter([*sent_once, *there])


NUMBERS = st.one_of(
    st.none(), st.binary(max_size=6), st.integers().map(lambda number: str(number).encode()),
    st.sampled_from([b"9" * 5_000, b"9" * 19, "\u0663".encode(), "\u00b2".encode()]),
)  # fmt: skip


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4))
def test_no_headers_that_somebody_made_up_hold_up_a_replay(numbers: list[tuple[bytes | None, bytes | None]]) -> None:
    log = dead_letter_log()
    for number, (partition, offset) in enumerate(numbers):
        made_up: Headers = (
            ("__streams.errors.exception", b"E"), ("__streams.errors.topic", b"a"),
            ("__streams.errors.partition", partition), ("__streams.errors.offset", offset),
        )  # fmt: skip
        log.append(OutputBatch("dead", [b"k"], [b"%d" % number], [number], [made_up]))
    letter(log, len(numbers), 0, "a", ERRORS[0])
    replay(log, "dead", Selection())
    assert sorted(values(log, "a")) == [*range(len(numbers) + 1)]


def test_an_application_of_the_id_that_replays_have_is_left_alone(tmp_path: Path) -> None:
    """A replay of `dead` commits as `dead-replay` does."""
    topology = Topology().add_source("letters", "dead").add_sink("out", "elsewhere", "letters")
    application = Application("dead-replay", topology, data_dir=str(tmp_path), engine="embedded")
    with closing(open_log(application.settings)) as log:
        for name in ("dead", "elsewhere", "a"):
            log.create_topic(name, 1)
        letter(log, 0, 0, "a", ERRORS[0])
        run(application)
        letter(log, 1, 0, "a", ERRORS[0])
        committed = log.last_commit("dead-replay", "0_0", [PLACE])
        for refused in (lambda: replay(log, "dead", Selection()), lambda: count_letters(log, "dead")):
            with pytest.raises(ConfigError, match="application of this id, whose commits a replay would replace"):
                refused()
        assert log.last_commit("dead-replay", "0_0", [PLACE]) == committed
        assert run(application).records_in == 1


def test_it_goes_back_as_it_was_and_where_it_was() -> None:
    log = dead_letter_log()
    letter(log, 7, 1, "a", ERRORS[0], from_partition=2)
    letter(log, 8, 1, "b", ERRORS[0], from_partition=5)  # where there is no such partition any more: by key
    done = replay(log, "dead", Selection())
    assert [(each.partition, each.to, each.records, each.first, each.last) for each in done.sent] == [
        (1, "a", 1, 0, 0), (1, "b", 1, 1, 1),
    ]  # fmt: skip
    (batch,) = log.fetch(TopicPartition("a", 2), 0, 1, 100)
    assert (batch.keys[0], batch.values[0], batch.timestamps[0]) == (b"k", b"7", 7)
    assert batch.headers is not None and batch.headers[0] == HEADERS
    assert values(log, "b") == [8]
    replay(log, "dead", Selection(), to="elsewhere", again=True)
    assert sorted(values(log, "elsewhere")) == [7, 8]


def test_a_windowed_key_goes_where_the_sink_of_its_topic_sends_it() -> None:
    log = dead_letter_log()
    names = [f"k{number}" for number in range(20)]
    serde = resolve_serde("windowed:str:1s", None, "test")
    for topic in ("windows", "read", "by-first"):
        log.create_topic(topic, 7)
    for number, name in enumerate(names):
        failure = Failure(Stage.PROCESSING, ERRORS[0], "node", "0_0", "a", 9, number, b"", b"", ())
        key = serde.serialize(Windowed(name, 5_000, 6_000))
        log.append(OutputBatch("dead", [key], [b"%d" % number], [0], [letter_headers(failure)], [[0]]))
    topology = Topology().add_source("all", "a", "read", key_serde=serde)
    topology.add_sink("windows", "windows", "all", key_serde=serde)
    topology.add_sink("by first", "by-first", "all", key_serde=serde, partition_by=lambda key: key.key[0])
    targets = ApplicationTargets(Application("app", topology), log)
    for topic in ("windows", "read", "by-first"):
        replay(log, "dead", Selection(), to=topic, again=True, targets=targets)
    for topic, hashed in (("windows", names), ("read", names), ("by-first", ["k"] * len(names))):
        assert placed(log, topic) == [default_partitioner(each.encode(), 7) for each in hashed], topic
    replay(log, "dead", Selection(), again=True, targets=targets)  # back, where partition 9 is not there any more
    assert placed(log, "a") == [default_partitioner(each.encode(), 3) for each in names]


def test_a_letter_goes_where_the_partitioner_of_its_topic_sends_its_record() -> None:
    """It was asked with the key alone, so it named another partition, and one letter for which it failed stopped all."""
    log = dead_letter_log()
    log.create_topic("app-by-value-repartition", 5)
    for number in range(12):
        value = b"no number" if number == 5 else b"%d" % number
        failure = Failure(
            Stage.PROCESSING, ERRORS[0], "node", "0_0", "app-by-value-repartition", 9, number, b"", b"", ()
        )
        key = b"k" if number % 4 else None
        log.append(OutputBatch("dead", [key], [value], [number], [letter_headers(failure)], [[0]]))
    topology = Topology().add_source("all", "a").add_repartition(
        "by-value", "all", key_serde="str", value_serde="str",
        partitioner=lambda topic, record, count: int(record.value or 0) % count,
    )  # fmt: skip
    targets = ApplicationTargets(Application("app", topology), log)
    done = replay(log, "dead", Selection(), targets=targets)
    assert placed(log, "app-by-value-repartition") == [number % 5 for number in range(12) if number != 5]
    ((topic, why), count), *others = done.held.items()
    assert (topic, count, others) == ("app-by-value-repartition", 1, [])
    assert "cannot choose a partition for it: ValueError" in why and "no number" not in why
    again = replay(log, "dead", Selection(), targets=targets)
    assert (again.sent, list(again.held.values())) == ((), [1])


def test_a_partitioner_that_goes_by_headers_gets_those_of_the_letter() -> None:
    log = dead_letter_log()
    for number in range(6):
        headers: Headers = (("tenant", b"%d" % (number % 3)),)
        failure = Failure(Stage.PROCESSING, ERRORS[0], "node", "0_0", "b", 9, number, b"k", b"", headers)
        log.append(OutputBatch("dead", [b"k"], [b"%d" % number], [0], [letter_headers(failure)], [[0]]))

    def by_tenant(topic: str, record: Record, count: int) -> int:
        return int(dict(record.headers).get("tenant") or 0) % count

    topology = Topology().add_source("all", "b", key_serde="str")
    topology.add_sink("by tenant", "a", "all", key_serde="str", value_serde="bytes", partitioner=by_tenant)
    targets = ApplicationTargets(Application("app", topology), log)
    replay(log, "dead", Selection(), to="a", targets=targets)
    assert placed(log, "a") == [0, 1, 2, 0, 1, 2]


def test_no_letter_is_dropped_by_a_partitioner_that_drops_its_record() -> None:
    log = dead_letter_log()
    letter(log, 7, 0, "a", ERRORS[0])
    topology = Topology().add_source("all", "a", key_serde="str")
    topology.add_sink("some", "elsewhere", "all", key_serde="str", partitioner=lambda topic, record, count: ())
    targets = ApplicationTargets(Application("app", topology), log)
    done = replay(log, "dead", Selection(), to="elsewhere", targets=targets)
    (((_, why), count),) = done.held.items()
    assert not done.sent and count == 1 and "sink 'some' cannot choose a partition for it: it drops the record" in why
    assert [each.records for each in replay(log, "dead", Selection(), to="elsewhere").sent] == [1]
    assert values(log, "elsewhere") == [7]


def placed(log: Log, topic: str) -> list[int]:
    """Return the partition of each record, in the order of the values."""
    found = {}
    for number in range(log.topics()[topic].partitions):
        partition = TopicPartition(topic, number)
        for batch in log.fetch(partition, 0, log.end_offsets([partition])[partition], 1 << 30):
            found.update(dict.fromkeys(map(int, filter(None, batch.values)), number))
    return [found[each] for each in sorted(found)]


def test_what_is_named_by_place_is_sent_whatever_was_before_and_not_again_by_others() -> None:
    log = dead_letter_log()
    for number in range(8):
        letter(log, number, 0, "a", ERRORS[0])
    replay(log, "dead", Selection(), limit=2)
    replay(log, "dead", Selection(first=1, last=3))
    assert sorted(values(log, "a")) == [0, 1, 1, 2, 3]
    replay(log, "dead", Selection(first=5, last=5))
    replay(log, "dead", Selection(since_ms=7))
    assert count_letters(log, "dead") == {("a", "builtins.ValueError"): (8, 2)}
    replay(log, "dead", Selection(sources=("a",)), limit=1)
    replay(log, "dead", Selection())
    assert sorted(values(log, "a")) == [0, 1, 1, 2, 3, 4, 5, 6, 7]


def test_stretches_of_offsets_that_touch_are_one() -> None:
    done = Replayed()
    for first, last in ((9, 9), (1, 2), (5, 6), (3, 3), (2, 4)):
        done.note_stretch(first, last)
    assert done.stretches == [(1, 6), (9, 9)]
    commit = Commit({PLACE: 0}, "replay", done.to_bytes())
    assert Replayed.of(commit, PLACE) == done
    done.note_all(5)
    assert [offset for offset in range(11) if done.has(at_offset(offset))] == [0, 1, 2, 3, 4, 5, 6, 9]
    done.note_all(7)
    assert done.stretches == [(9, 9)]


ROW = [(1, "a", ERRORS[0]), (1, "a", ERRORS[1]), (1, "a", ERRORS[0]), (2, "a", ERRORS[0])]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("limit", [None, 1])
def test_letters_of_one_source_record_in_a_row_are_sent_once(limit: int | None, apart: bool) -> None:
    """Kafka Streams makes a letter of each output that fails, and so did this project's earlier programs.

    Where they are in several batches, a limit is reached between two of them.
    """
    log = dead_letter_log(kind=OneByOne if apart else FaultyLog)
    append(log, 0, ROW)
    assert replay(log, "dead", Selection(), limit=limit, dry_run=True).sent[0].records == (limit or 2)
    sent = 0
    while done := replay(log, "dead", Selection(), limit=limit).sent:
        sent += done[0].records
    assert sent == 2 and values(log, "a") == [1, 2]
    assert {waiting for _, waiting in count_letters(log, "dead").values()} == {0}


@pytest.mark.parametrize("selection", [Selection(), Selection(exceptions=("ValueError",))])
@pytest.mark.parametrize("fault", ["before commit", "after commit"])
def test_a_replay_that_was_killed_between_letters_of_one_record_does_not_send_it_again(
    fault: str, selection: Selection
) -> None:
    log = dead_letter_log(kind=OneByOne)
    append(log, 0, ROW)
    for after in (0, 1, 2):
        FAULTS.clear()
        FAULTS.plan(fault, after)
        with suppress(Crash):
            replay(log, "dead", selection)
    FAULTS.clear()
    replay(log, "dead", selection)
    assert values(log, "a") == [1, 2]


def test_letters_of_another_kind_wait_though_their_record_was_sent() -> None:
    log = dead_letter_log()
    append(log, 0, ROW[1:3])
    replay(log, "dead", Selection(exceptions=("KeyError",)))
    assert count_letters(log, "dead")["a", "builtins.ValueError"] == (1, 1)
    assert replay(log, "dead", Selection()).sent[0].records == 1


def test_what_has_no_source_is_left_out() -> None:
    log = dead_letter_log()
    failure = Failure(Stage.PROCESSING, ValueError("tick"), "node", "0_0", None, None, None)
    log.append(OutputBatch("dead", [None, b"k"], [None, b"1"], [1, 2], [letter_headers(failure), ()], [[0], [0]]))
    letter(log, 3, 0, "a", ERRORS[0])
    done = replay(log, "dead", Selection())
    assert (sum(each.records for each in done.sent), done.left_out) == (1, 2)
    assert count_letters(log, "dead") == {
        (None, "builtins.ValueError"): (1, 0), (None, None): (1, 0), ("a", "builtins.ValueError"): (1, 0),
    }  # fmt: skip


def test_what_retention_deleted_is_passed_over() -> None:
    log = dead_letter_log()
    for number in range(4):
        letter(log, number, 0, "a", ERRORS[0])
    log.purge(TopicPartition("dead", 0), 3)
    replay(log, "dead", Selection())
    assert values(log, "a") == [3]


def held(done: Replay) -> dict[str, int]:
    return {topic: number for (topic, _), number in done.held.items()}


def test_letters_of_a_topic_that_is_gone_wait_and_hold_up_no_others() -> None:
    log = dead_letter_log()
    for number, source in enumerate(["a", "gone", "a", "b", "gone"]):
        letter(log, number, 0, source, ERRORS[0])
    for _ in range(2):  # the second sends nothing
        done = replay(log, "dead", Selection())
        assert dict(done.held) == {("gone", "it does not exist"): 2}
        assert (values(log, "a"), values(log, "b")) == ([0, 2], [3])
    assert held(replay(log, "dead", Selection(sources=("gone",)))) == {"gone": 2}
    assert held(replay(log, "dead", Selection(first=1, last=1))) == {"gone": 1}
    waiting = {source: waiting for (source, _), (_, waiting) in count_letters(log, "dead").items()}
    assert waiting == {"a": 0, "b": 0, "gone": 2}
    with pytest.raises(UnknownTopicError, match="no topic 'nowhere' to replay to"):
        replay(log, "dead", Selection(), to="nowhere")
    replay(log, "dead", Selection(first=1, last=1), to="b")
    letter(log, 5, 0, "a", ERRORS[0])
    log.create_topic("gone", 1)
    assert held(replay(log, "dead", Selection())) == {}
    assert (values(log, "a"), values(log, "b"), values(log, "gone")) == ([0, 2, 5], [3, 1], [4])


def test_a_topic_that_went_after_some_of_its_letters_holds_up_the_others() -> None:
    log = dead_letter_log()
    log.create_topic("gone", 1)
    letter(log, 0, 0, "gone", ERRORS[0])
    replay(log, "dead", Selection(sources=("gone",)))
    log.delete_topic("gone")
    letter(log, 1, 0, "gone", ERRORS[0])
    letter(log, 2, 0, "a", ERRORS[0])
    for _ in range(2):
        assert held(replay(log, "dead", Selection())) == {"gone": 1}
    log.create_topic("gone", 1)
    replay(log, "dead", Selection())
    assert (values(log, "a"), values(log, "gone")) == ([2], [1])


@pytest.mark.parametrize("log", ["memory", "local"])
@pytest.mark.parametrize("sources", [(), ("small",), ("small", "a")])
def test_letters_that_a_topic_refuses_wait_and_hold_up_no_others(
    log: Any, sources: tuple[str, ...], tmp_path: Path
) -> None:
    log = MemoryLog() if log == "memory" else LocalLog(str(tmp_path))
    for topic in ("a", "dead"):
        log.create_topic(topic, 1)
    log.create_topic("small", 1, {"max.message.bytes": "2"})
    accepted, refused, others = [0, 2, 4, 6, 8, 9], [10, 11, 12], [1, 3, 5, 7]
    for numbers in ((0, 1, 10, 2), (3, 4, 11, 12, 5, 6), (7, 8, 9)):
        append(log, 0, [(each, "a" if each in others else "small", ERRORS[each == 9]) for each in numbers])
    with closing(log):
        done = replay(log, "dead", Selection(sources=sources), limit=4)
        assert sum(each.records for each in done.sent) == 4
        for _ in range(2):  # the second sends nothing
            done = replay(log, "dead", Selection(sources=sources))
            assert held(done) == {"small": 3}
            assert all("larger than the topic's 'max.message.bytes'" in why for _, why in done.held)
        assert held(replay(log, "dead", Selection())) == {"small": 3}
        assert (values(log, "small"), values(log, "a")) == (accepted, others)
        assert held(replay(log, "dead", Selection(first=6, last=8), to="small")) == {"small": 2}
        letter(log, 15, 0, "a", ERRORS[0])
        log.delete_topic("small")
        log.create_topic("small", 1)
        assert held(replay(log, "dead", Selection())) == {}
        assert (values(log, "small"), values(log, "a")) == (refused, [*others, 15])
        assert not replay(log, "dead", Selection()).sent


def test_headers_lead_to_no_topic_but_inputs() -> None:
    """Anybody who may write to a dead-letter topic writes them."""
    log = dead_letter_log()
    sources = ["a", "b", "app-counts-changelog", "app-again-repartition", "in-1", "elsewhere", "__internal", "fixed"]
    for number, source in enumerate(sources):
        if source not in log.topics():
            log.create_topic(source, 1)
        letter(log, number, 0, source, ERRORS[0])
    topology = Topology().add_source("all", "a", key_serde="str").add_source("some", pattern="in-.*|app-.*")
    topology.add_repartition("again", "all", key_serde="str")
    topology.add_global_store(key_value_store("fixed"), "the fixed", "fixed", "fill", Ignores)
    application = Application("app", topology)
    done = replay(log, "dead", Selection(), targets=ApplicationTargets(application, log))
    assert [each.to for each in done.sent] == ["a", "app-again-repartition", "in-1", "fixed"]
    assert held(done) == dict.fromkeys(("b", "app-counts-changelog", "elsewhere", "__internal"), 1)
    # Where the application is not known, names tell.
    done = replay(log, "dead", Selection())
    assert [each.to for each in done.sent] == ["b", "elsewhere"]
    assert held(done) == dict.fromkeys(("app-counts-changelog", "__internal"), 1)


def test_two_at_once_send_nothing_twice(tmp_path: Path) -> None:
    class Overtaking(LocalLog):
        fetched = 0

        def fetch(self, *arguments: Any) -> list[RecordBatch]:
            self.fetched += 1
            if self.fetched == 2:  # the first portion is committed
                replay(self, "dead", Selection())
            return super().fetch(*arguments)

    log = Overtaking(str(tmp_path / "log"))
    for name in ("a", "dead"):
        log.create_topic(name, 1)
    for number in range(4):
        # So large that a fetch holds two of them.
        value = b"%d" % number * 600_000
        failure = Failure(Stage.PROCESSING, ERRORS[0], "node", "0_0", "a", 0, number)
        log.append(OutputBatch("dead", [b"k"], [value], [number], [letter_headers(failure)]))
    with pytest.raises(FencedError, match="another replay of 'dead' has taken over"):
        replay(log, "dead", Selection())
    found = [value[:1] for batch in log.fetch(TopicPartition("a", 0), 0, 4, 1 << 30) for value in batch.values if value]
    assert found == [b"0", b"1", b"2", b"3"]
    log.close()


def test_more_kinds_than_can_be_remembered_are_an_error_that_says_what_to_do() -> None:
    log = dead_letter_log()
    log.append(OutputBatch("dead", [], [], []))
    for number in range(200):
        error = type(f"Error{number}", (Exception,), {})("no")
        letter(log, number, 0, "a", error)
    letter(log, 200, 0, "b", ERRORS[0])
    with pytest.raises(ConfigError, match="200 kinds .* replay all others at once"):
        replay(log, "dead", Selection(sources=("a",)))
    assert values(log, "a") == []
    replay(log, "dead", Selection())
    assert len(values(log, "a")) == 200


class Read(FaultyLog):
    """A log that notes what is read of the dead letters: from which offset to which."""

    def __init__(self) -> None:
        super().__init__()
        self.stretches: list[tuple[int, int]] = []

    def fetch(self, partition: TopicPartition, start: int, end: int, max_bytes: int) -> list[RecordBatch]:
        if partition == PLACE:
            self.stretches.append((start, end))
        return super().fetch(partition, start, end, max_bytes)


def test_letters_before_many_offsets_without_records_are_on_the_page() -> None:
    """Compaction and aborted transactions leave such offsets: the page said that there are no letters."""
    log = MemoryLog()
    log.create_topic("dead", 1, {"cleanup.policy": "compact"})
    for key in (b"old", *[b"k"] * 200):
        log.append(OutputBatch("dead", [key], [b"v"], [0]))
    log.maintain(1)
    assert [each.offset for each in _latest(log, "dead", Selection(), 200)[0]] == [0]
    assert [each.offset for each in _latest(log, "dead", Selection(), -1)[0]] == [200]
    assert _latest(log, "dead", Selection(), 0)[0] == []


def test_of_many_letters_only_those_that_are_wanted_are_read() -> None:
    """A page of 50 old letters read all 20,000 behind them, and so did the replay of one."""
    log = Read()
    for name in ("a", "b", "dead"):
        log.create_topic(name, 1)
    for number in range(300):
        letter(log, number, 0, "a", ERRORS[0])
    assert [each.offset for each in _latest(log, "dead", Selection(), 100)[0]] == list(range(50, 100))
    assert [each.offset for each in read_letters(log, "dead", Selection(first=7, last=9))] == [7, 8, 9]
    replay(log, "dead", Selection(first=120, last=120))
    assert values(log, "a") == [120]
    assert [end for _, end in log.stretches] == [100, 10, 121]
