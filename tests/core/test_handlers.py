"""Error handlers: fail, skip, retry and dead letter, for records that cannot be read, processed or produced."""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    STREAM_TIME,
    DeadLetter,
    Fail,
    Failure,
    PenstockError,
    Processor,
    ProductionError,
    Record,
    Retry,
    RetryAfter,
    SendToDeadLetter,
    Serde,
    SerdeError,
    Skip,
    Stage,
    Topology,
    key_value_store,
    skip,
)
from penstock.errors import ProcessingError
from penstock.plugins.testing import TopologyTestDriver
from penstock.record import OutputBatch, TopicPartition

STAGES = ["deserialization", "processing", "production"]


class Fragile(Processor):
    """Counts what it processed; "raise" raises, "unwritable" is forwarded as what the sink's serde refuses."""

    def process(self, record: Record) -> None:
        seen = self.context.get_store("seen")
        seen.put("all", (seen.get("all") or 0) + 1)
        if record.value == "raise":
            raise ValueError("as asked")
        self.context.forward(record.with_value(7) if record.value == "unwritable" else record)


POISON = {"deserialization": b"\xff", "processing": b"raise", "production": b"unwritable"}
NODE = {"deserialization": "in", "processing": "fragile", "production": "out"}
REASON = {"deserialization": "deserialization", "processing": "skipped", "production": "production"}
HEADERS = (("trace", b"1"), ("trace", None))


def topology() -> Topology:
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("fragile", Fragile, "in", stores=[key_value_store("seen")])
        .add_sink("out", "out", "fragile")
    )


def driver_with(stage: str, handler: Any, reopen: bool = False) -> TopologyTestDriver:
    handlers: dict[str, Any] = {f"{stage}_handler": handler}
    return TopologyTestDriver(topology(), reopen_tasks=reopen, **handlers)


def send(driver: TopologyTestDriver, *rows: bytes) -> None:
    driver.pipe_raw(OutputBatch("in", [b"k"] * len(rows), list(rows), [5] * len(rows), [HEADERS] * len(rows)))


@pytest.fixture(params=[False, True], ids=["kept open", "opened again"])
def reopen(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("stage", STAGES)
def test_fail_names_everything_and_nothing_is_lost(stage: str, reopen: bool) -> None:
    with TopologyTestDriver(topology(), reopen_tasks=reopen) as driver:
        send(driver, b"a")
        kind = {"deserialization": SerdeError, "processing": ProcessingError, "production": ProductionError}[stage]
        doing = " while producing to topic 'out'" if stage == "production" else ""
        where = f"application 'test', task 0_0, node {NODE[stage]!r}{doing}, at topic 'in' partition 0 offset 1: "
        with pytest.raises(kind, match=re.escape(where)) as raised:
            send(driver, POISON[stage], b"b")
        assert isinstance(raised.value, PenstockError)
        assert raised.value.__cause__ is not None
        assert [record.value for record in driver.read_all("out")] == ["a"]
        # It stops there for ever, with the state of the last commit.
        with pytest.raises(kind):
            driver.advance_wall_clock("1s")
        assert driver.store("seen").get("all") == 1
        assert driver.log.committed("test", [TopicPartition("in", 0)]) == {TopicPartition("in", 0): 1}


@pytest.mark.parametrize("stage", STAGES)
def test_skip_drops_counts_and_moves_on(stage: str, reopen: bool, caplog: pytest.LogCaptureFixture) -> None:
    with driver_with(stage, skip, reopen) as driver:
        send(driver, b"a", POISON[stage], POISON[stage], b"b")
        assert [record.value for record in driver.read_all("out")] == ["a", "b"]
        assert driver.metrics()[NODE[stage]].dropped == Counter({REASON[stage]: 2})
        assert driver.dropped_records() == 2
        # What happened before the failure stays: the record is dropped at its node only.
        assert driver.store("seen").get("all") == (2 if stage == "deserialization" else 4)
        assert driver.log.committed("test", [TopicPartition("in", 0)]) == {TopicPartition("in", 0): 4}
    assert f"node {NODE[stage]!r}" in caplog.text and "offset 2" in caplog.text and ": skipped" in caplog.text


@pytest.mark.parametrize("stage", STAGES)
def test_dropped_records_are_logged_once_a_minute_and_what_they_contain_only_at_debug(
    stage: str, reopen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with driver_with(stage, DeadLetter("failed"), reopen) as driver:
        for _ in range(30):
            send(driver, *[POISON[stage]] * 10)
            driver.advance_wall_clock("10s")
    lines = [each.getMessage() for each in caplog.records if each.name == "penstock.task"]
    assert len(lines) == 6
    where = f"application 'test', task 0_0, node {NODE[stage]!r}"
    assert all(line.startswith(where) and ": sent to failed" in line for line in lines)
    assert "at topic 'in' partition 0 offset 0: " in lines[0]
    assert sum(int(line.rpartition("the last of ")[2].split()[0]) for line in lines[1:]) == 299
    assert not any("as asked" in line or "xff" in line or "int 7" in line for line in lines)
    if stage == "processing":
        assert ": ValueError (test_handlers.py, line " in lines[0] and ", in process)" in lines[0]
    with driver_with(stage, skip) as driver, caplog.at_level(logging.DEBUG, "penstock.task"):
        caplog.clear()
        send(driver, POISON[stage])
    shown = [each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG]
    assert [text.endswith(f"; key b'k', value {POISON[stage]!r}") for text in shown] == [True]


def test_attempts_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with driver_with("processing", Retry(attempts=50, then=skip)) as driver:
        send(driver, b"raise")
    lines = [each.getMessage() for each in caplog.records if each.name == "penstock.worker"]
    assert len(lines) == 2
    assert lines[0].endswith("attempt 1 failed; again in 1000 ms")
    assert lines[1].endswith("attempt 50 failed; again in 1000 ms (the last of 49 in 0 s)")


def test_a_skipped_record_goes_on_in_the_other_children() -> None:
    class Raising(Processor):
        def process(self, record: Record) -> None:
            raise ValueError("no")

    class Both(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record)
            self.context.forward(record.with_value("after"))

    built = Topology().add_source("in", "in").add_processor("both", Both, "in").add_processor("bad", Raising, "both")
    built.add_processor("worse", Raising, "bad").add_sink("out", "out", "both")
    with TopologyTestDriver(built, processing_handler=skip) as driver:
        send(driver, b"a")
        assert [record.value for record in driver.read_all("out")] == ["a", "after"]
        assert driver.metrics()["bad"].dropped == {"skipped": 2}
        assert "worse" not in {name for name, each in driver.metrics().items() if each.dropped}


@pytest.mark.parametrize("stage", STAGES)
def test_a_dead_letter_is_the_source_record_with_the_reason_in_its_headers(stage: str, reopen: bool) -> None:
    with driver_with(stage, DeadLetter("dead"), reopen) as driver:
        send(driver, b"a", POISON[stage], b"b")
        assert [record.value for record in driver.read_all("out")] == ["a", "b"]
        dead = driver.output_topic("dead", key_serde="bytes", value_serde="bytes").read_all()
        (letter,) = dead
        assert (letter.key, letter.value, letter.timestamp) == (b"k", POISON[stage], 5)
        assert letter.headers[:2] == HEADERS
        about = {name: value or b"" for name, value in letter.headers[2:]}
        assert {name: about[f"__streams.errors.{name}"] for name in ("topic", "partition", "offset")} == {
            "topic": b"in", "partition": b"0", "offset": b"1",
        }  # fmt: skip
        expected = {"deserialization": "SerdeError", "processing": "ValueError", "production": "SerdeError"}[stage]
        assert str(about["__streams.errors.exception"], "utf-8").endswith(expected)
        assert about["__streams.errors.message"]
        assert b"Traceback" in about["__streams.errors.stacktrace"]
        assert driver.dropped_records() == 1


class Exploding(Processor):
    """Forwards each letter of a value, and fails for "!" behind them; the sink's serde refuses what stands for "u"."""

    def process(self, record: Record) -> None:
        for each in record.value:
            self.context.forward(record.with_value(7 if each == "u" else each))
        if record.value.endswith("!"):
            raise ValueError("at the end")


class Refusing(Processor):
    def process(self, record: Record) -> None:
        if record.value == "x":
            raise ValueError("no x")
        self.context.forward(record)


@given(st.lists(st.text("axu!", max_size=5), max_size=5))
def test_a_record_of_which_several_outputs_fail_is_one_dead_letter(values: list[str]) -> None:
    """A replay sends the record again, and not once for each of them."""
    built = Topology().add_source("in", "in").add_processor("explode", Exploding, "in")
    for branch in ("one", "two"):
        built.add_processor(branch, Refusing, "explode").add_sink(f"out-{branch}", "out", branch)
    dead = DeadLetter("dead")
    with TopologyTestDriver(built, processing_handler=dead, production_handler=dead) as driver:
        send(driver, *(each.encode() for each in values))
        letters = driver.output_topic("dead", key_serde="bytes", value_serde="bytes").read_all()
        failed = [each for each in values if set(each) & {"x", "u"} or each.endswith("!")]
        assert sorted(str(each.value, "utf-8") for each in letters) == sorted(failed)
        dropped = sum(2 * (each.count("x") + each.count("u")) + each.endswith("!") for each in values)
        assert driver.dropped_records() == dropped, "each failure is counted"


def test_dead_letters_may_go_where_a_sink_writes_too() -> None:
    with TopologyTestDriver(topology(), processing_handler=DeadLetter("out")) as driver:
        send(driver, b"a", b"raise", b"b")
        found = driver.read_all("out")
        assert [record.value for record in found] == ["a", "raise", "b"]
        assert [len(record.headers) for record in found] == [2, 8, 2]


class Flaky(Processor):
    """Fails for as long as `failures` says, over re-openings."""

    failures = 0

    def process(self, record: Record) -> None:
        seen = self.context.get_store("seen")
        seen.put("all", (seen.get("all") or 0) + 1)
        self.context.forward(record)
        if record.value == "raise" and Flaky.failures > 0:
            Flaky.failures -= 1
            raise OSError("not now")


@pytest.mark.parametrize(("failures", "succeeds"), [(1, True), (3, True), (4, False)])
def test_retry_goes_back_to_the_commit_and_gives_up_in_the_end(failures: int, succeeds: bool, reopen: bool) -> None:
    Flaky.failures = failures
    built = Topology().add_source("in", "in").add_processor("fragile", Flaky, "in", stores=[key_value_store("seen")])
    built.add_sink("out", "out", "fragile")
    with TopologyTestDriver(built, reopen_tasks=reopen, processing_handler=Retry(3, "5ms", skip)) as driver:
        send(driver, b"a", b"raise", b"b")
        # What the failed attempts put and forwarded never happened; a skipped record keeps what came before its
        # failure.
        assert [record.value for record in driver.read_all("out")] == ["a", "raise", "b"]
        assert driver.store("seen").get("all") == 3
        assert driver.dropped_records() == (0 if succeeds else 1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_handler_is_told_what_failed_where_and_how_often(stage: str) -> None:
    seen: list[Failure] = []

    def handler(failure: Failure) -> Any:
        seen.append(failure)
        return RetryAfter("1ms") if failure.attempt < 3 else Skip()

    with driver_with(stage, handler) as driver:
        send(driver, b"a", POISON[stage])
    assert [failure.attempt for failure in seen] == [1, 2, 3]
    last = seen[-1]
    assert (last.stage, last.node, last.task_id) == (Stage(stage), NODE[stage], "0_0")
    assert (last.topic, last.partition, last.offset, last.timestamp) == ("in", 0, 1, 5)
    assert (last.raw_key, last.raw_value, last.headers) == (b"k", POISON[stage], HEADERS)


def test_attempts_are_counted_for_each_record() -> None:
    attempts: list[tuple[int | None, int]] = []

    def handler(failure: Failure) -> Any:
        attempts.append((failure.offset, failure.attempt))
        return RetryAfter("1ms") if failure.attempt < 2 else Skip()

    with TopologyTestDriver(topology(), processing_handler=handler) as driver:
        send(driver, b"raise", b"raise")
    assert attempts == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_a_punctuator_has_no_record_to_send_away() -> None:
    class Failing(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule("10ms", self.fire, STREAM_TIME)

        def fire(self, now: int) -> None:
            raise ValueError("in time")

        def process(self, record: Record) -> None:
            pass

    seen: list[Failure] = []

    def handler(failure: Failure) -> Any:
        seen.append(failure)
        return SendToDeadLetter("dead")

    built = Topology().add_source("in", "in").add_processor("p", Failing, "in")
    with TopologyTestDriver(built, processing_handler=handler) as driver:
        driver.pipe("in", "k", "v", 17)
        letter = driver.output_topic("dead", key_serde="bytes", value_serde="bytes").read()
    assert letter is not None
    assert (letter.key, letter.value, letter.timestamp) == (None, None, 17)
    assert dict(letter.headers)["__streams.errors.offset"] is None
    assert (seen[0].topic, seen[0].raw_value, seen[0].node) == (None, None, "p")


def test_a_handler_that_answers_nonsense_is_named() -> None:
    message = r"offset 0: .*processing handler.* returned None, expected Fail\(\), Skip\(\)"
    driver = TopologyTestDriver(topology(), processing_handler=lambda failure: None)
    with driver, pytest.raises(PenstockError, match=message):
        send(driver, b"raise")


def test_a_decision_to_fail_goes_up_through_nodes_untouched() -> None:
    asked: list[str] = []

    def handler(failure: Failure) -> Any:
        asked.append(failure.node)
        return Fail()

    class Above(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record)

    built = Topology().add_source("in", "in").add_processor("above", Above, "in")
    built.add_processor("fragile", Fragile, "above", stores=[key_value_store("seen")])
    with TopologyTestDriver(built, processing_handler=handler) as driver, pytest.raises(ProcessingError):
        send(driver, b"raise")
    assert asked == ["fragile"]


def test_a_line_about_a_record_names_its_place_and_the_first_cause(caplog: pytest.LogCaptureFixture) -> None:
    """A serde that calls another one raises an error because of an error of the same type."""

    class Wrapped(Serde[Any]):
        def serialize(self, value: Any) -> bytes:
            return bytes(value)

        def deserialize(self, data: bytes) -> Any:
            try:
                try:
                    return int(data)
                except ValueError as error:
                    raise SerdeError("inner") from error
            except SerdeError as error:
                raise SerdeError("outer") from error

    topology = Topology().add_source("in", "in", value_serde=Wrapped()).add_sink("out", "out", "in")
    with TopologyTestDriver(topology, deserialization_handler=skip) as driver:
        send(driver, b"five")
    assert "at topic 'in' partition 0 offset 0: SerdeError caused by ValueError (test_handlers.py, " in caplog.text


class Exiting(Processor):
    """Calls `sys.exit` for a record or in a punctuator."""

    def __init__(self, where: str = "process") -> None:
        self.where = where

    def init(self, context: Any) -> None:
        super().init(context)
        if self.where == "punctuator":
            context.schedule("1ms", lambda now: sys.exit(3), STREAM_TIME)

    def process(self, record: Record) -> None:
        if self.where == "process":
            sys.exit(3)
        self.context.forward(record)


class ExitingSerde(Serde[str]):
    def serialize(self, value: str) -> bytes:
        sys.exit(3)

    def deserialize(self, data: bytes) -> str:
        sys.exit(3)


def exiting_extractor(record: Record, partition_time: int, wall_clock: int) -> int:
    sys.exit(3)


@pytest.mark.parametrize("where", ["process", "punctuator", "source", "sink", "extractor", "partitioner"])
@pytest.mark.parametrize("handler", [skip, DeadLetter("dead"), Retry(2, "0ms")], ids=["skip", "dead", "retry"])
def test_sys_exit_ends_the_run_and_no_handler_is_asked(handler: Any, where: str) -> None:
    source: dict[str, Any] = {"value_serde": ExitingSerde() if where == "source" else "str"}
    if where == "extractor":
        source["timestamp_extractor"] = exiting_extractor
    sink: dict[str, Any] = {"value_serde": ExitingSerde() if where == "sink" else "str"}
    if where == "partitioner":
        sink["partitioner"] = lambda topic, record, count: sys.exit(3)
    made = Topology().add_source("in", "in", **source).add_processor("exits", Exiting, "in", where=where)
    made.add_sink("out", "out", "exits", **sink)
    handlers: dict[str, Any] = {f"{stage}_handler": handler for stage in STAGES}
    with (
        TopologyTestDriver(made, **handlers) as driver,
        pytest.raises(PenstockError, match=r"node '(in|exits|out)'.*it called sys.exit\(3\), which ends the run"),
    ):
        for timestamp in (1, 10):
            driver.pipe_raw(OutputBatch("in", [b"k"], [b"v"], [timestamp], None, [[0]]))
