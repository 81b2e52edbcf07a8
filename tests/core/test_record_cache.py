"""The record cache: what a flush listener gets, in which order, and with what."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    DeadLetter,
    Decision,
    Failure,
    Handler,
    Processor,
    ProcessorContext,
    Record,
    Retry,
    SendToDeadLetter,
    StoreBuilder,
    Topology,
    TopologyError,
    ValueAndTimestamp,
    Windowed,
    key_value_store,
    session_store,
    skip,
    window_store,
)
from penstock.errors import ProcessingError
from penstock.plugins.testing import MockProcessorContext, TopologyTestDriver

TEXTS = {"key_serde": "str", "value_serde": "int"}
STORE = key_value_store("s", key_serde="str", value_serde="int", cached=True)


class Puts(Processor):
    """Puts what the record says: pairs of key and value."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.store = context.get_store("s")
        context.set_flush_listener("s", self.changed)

    def changed(self, record: Record) -> None:
        metadata = self.context.record_metadata
        offset = None if metadata is None else metadata.offset
        key = list(record.key) if isinstance(record.key, Windowed) else record.key
        self.context.forward(record.with_key(key).with_value([record.value.new, record.value.old, offset]))

    def process(self, record: Record) -> None:
        for key, value in record.value:
            self.store.put(key, value)


def topology(processor: Callable[[], Processor] = Puts, store: StoreBuilder = STORE) -> Topology:
    return (
        Topology()
        .add_source("in", "in", key_serde="str", value_serde="json")
        .add_processor("p", processor, "in", stores=[store])
        .add_sink("out", "out", "p", key_serde="json", value_serde="json")
    )


def updates(driver: TopologyTestDriver) -> list[tuple[Any, ...]]:
    return [(each.key, *each.value, each.timestamp) for each in driver.read_all("out")]


PUTS = st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 9))), max_size=6)


@given(st.lists(PUTS, max_size=5), st.booleans())
def test_each_commit_forwards_the_last_update_of_each_key_by_its_last_put(
    records: list[list[tuple[str, int | None]]], reopen: bool
) -> None:
    content: dict[str, int] = {}
    with TopologyTestDriver(topology(), reopen_tasks=reopen) as driver:
        for offset, puts in enumerate(records):
            before = dict(content)
            last: dict[str, int | None] = {}
            for key, value in puts:
                last.pop(key, None)
                last[key] = value
                content.pop(key, None)
                if value is not None:
                    content[key] = value
            driver.pipe("in", "k", puts, 100 + offset)
            assert updates(driver) == [
                (key, new, before.get(key), offset, 100 + offset)
                for key, new in last.items()
                if new is not None or key in before
            ]


@given(st.lists(PUTS, max_size=5))
def test_without_a_budget_each_update_is_forwarded_at_once(records: list[list[tuple[str, int | None]]]) -> None:
    content: dict[str, int | None] = {}
    with TopologyTestDriver(topology(), statestore_cache_max_bytes=0) as driver:
        for offset, puts in enumerate(records):
            expected = []
            for key, value in puts:
                if value is not None or content.get(key) is not None:
                    expected.append((key, value, content.get(key), offset, 100 + offset))
                content[key] = value
            driver.pipe("in", "k", puts, 100 + offset)
            assert updates(driver) == expected


def test_a_full_cache_forwards_before_the_commit_and_the_budget_is_shared_by_the_tasks() -> None:
    puts = [(str(each), each) for each in range(6)] * 2
    for partitions, forwarded in ((1, 6), (2, 12)):
        # Six entries take about 1,300 bytes: one task has room for them, and one of two has not.
        with TopologyTestDriver(topology(), partitions=partitions, statestore_cache_max_bytes=1_500) as driver:
            driver.pipe("in", "k", puts, 1, partition=0)
            assert len(updates(driver)) == forwarded


def test_a_value_is_forwarded_as_it_was_put() -> None:
    class Lists(Puts):
        def process(self, record: Record) -> None:
            value = [1]
            self.store.put("a", value)
            value.append(2)

    with TopologyTestDriver(topology(Lists, key_value_store("s", key_serde="str", cached=True))) as driver:
        driver.pipe("in", "k", [], 5)
        assert updates(driver) == [("a", [1], None, 0, 5)]


def test_a_key_of_another_type_with_the_same_bytes_is_the_same() -> None:
    class Size(StrEnum):
        LARGE = "large"

    class Both(Puts):
        def process(self, record: Record) -> None:
            for value, key in enumerate(("large", Size.LARGE, "large")):
                self.store.put(key, value)

    with TopologyTestDriver(topology(Both)) as driver:
        driver.pipe("in", "k", [], 100)
        assert [each[:3] for each in updates(driver)] == [("large", 2, None)]


def test_keys_that_are_equal_in_python_are_two_for_the_serde() -> None:
    class Equal(Puts):
        def process(self, record: Record) -> None:
            self.store.put(1, 1)
            self.store.put(True, 2)
            self.store.put(1.0, 3)

    with TopologyTestDriver(topology(Equal, key_value_store("s", cached=True))) as driver:
        driver.pipe("in", "k", [], 5)
        assert [(repr(each[0]), each[1]) for each in updates(driver)] == [("1", 1), ("True", 2), ("1.0", 3)]


def test_a_timestamped_value_is_forwarded_with_its_timestamp() -> None:
    class Stamped(Puts):
        def changed(self, record: Record) -> None:
            assert record.value.new == ValueAndTimestamp(1, 42)
            self.context.forward(record.with_value([record.value.new.value, record.value.old, 0]))

        def process(self, record: Record) -> None:
            self.store.put("a", ValueAndTimestamp(1, 42))

    store = key_value_store("s", key_serde="str", value_serde="int", timestamped=True, cached=True)
    with TopologyTestDriver(topology(Stamped, store)) as driver:
        driver.pipe("in", "k", [], 5)
        assert updates(driver) == [("a", 1, None, 0, 42)]


def test_window_and_session_stores_forward_windowed_keys() -> None:
    class Windows(Puts):
        def process(self, record: Record) -> None:
            for start in (10, 0, 10):
                self.store.put("a", start + 1, start)
            self.store.put("late", 1, 5)
            self.store.put("a", 7, 10_000)

    def check(processor: Callable[[], Processor], store: StoreBuilder, expected: list[tuple[Any, ...]]) -> None:
        with TopologyTestDriver(topology(processor, store)) as driver:
            driver.pipe("in", "k", [], 5)
            assert updates(driver) == expected

    windows = window_store("s", retention="1s", window_size="10ms", cached=True, **TEXTS)  # type: ignore[arg-type]
    # What had expired when the cache was flushed is forwarded too: it counted when it was put.
    check(
        Windows,
        windows,
        [
            (["a", 0, 10], 1, None, 0, 5),
            (["a", 10, 20], 11, None, 0, 5),
            (["late", 5, 15], 1, None, 0, 5),
            (["a", 10_000, 10_010], 7, None, 0, 5),
        ],
    )

    class Sessions(Puts):
        def process(self, record: Record) -> None:
            self.store.put(Windowed("a", 1, 3), 1)
            self.store.remove(Windowed("a", 1, 3))
            self.store.put(Windowed("a", 1, 9), 2)
            self.store.put(Windowed("a", 5_000, 5_000), 3)
            self.store.put(Windowed("a", 2, 4), 4)

    sessions = session_store("s", retention="1s", cached=True, **TEXTS)  # type: ignore[arg-type]
    # So is what had expired when it was put: the store drops it, and it is an update nevertheless.
    check(
        Sessions,
        sessions,
        [(["a", 1, 9], 2, None, 0, 5), (["a", 5_000, 5_000], 3, None, 0, 5), (["a", 2, 4], 4, None, 0, 5)],
    )


def test_an_error_of_the_listener_meets_the_handler_once_for_each_key() -> None:
    class Fails(Puts):
        def changed(self, record: Record) -> None:
            if record.key == "b":
                raise ValueError("b")
            super().changed(record)

    with TopologyTestDriver(topology(Fails), processing_handler=skip) as driver:
        driver.pipe("in", "k", [("a", 1), ("b", 2), ("c", 3)], 5)
        assert [each[0] for each in updates(driver)] == ["a", "c"]
        assert driver.metrics()["p"].dropped == {"skipped": 1}
    with (
        TopologyTestDriver(topology(Fails)) as driver,
        pytest.raises(ProcessingError, match="node 'p'.*at topic 'in' partition 0 offset 0: ValueError: b"),
    ):
        driver.pipe("in", "k", [("b", 2)], 5)


class Refuses(Processor):
    """Forwards what its sink cannot write; fails itself for an update to 2."""

    def process(self, record: Record) -> None:
        if record.value[0] == 2:
            raise ValueError("two")
        if record.value[0] == 3:
            self.context.forward(record)


def _sends_away(failure: Failure) -> Decision:
    return SendToDeadLetter("dead")


@pytest.mark.parametrize("handler", [DeadLetter("dead"), Retry(1, "1ms", DeadLetter("dead")), _sends_away])
def test_a_dead_letter_of_a_flush_is_the_source_record_that_made_the_update(handler: Handler) -> None:
    program = topology().add_processor("q", Refuses, "p").add_sink("int", "int", "q", value_serde="int")
    with TopologyTestDriver(program, processing_handler=handler, production_handler=handler) as driver:
        for offset, name in enumerate(("one", "two", "three")):
            driver.pipe("in", name, [(name, offset + 1)], offset, headers=(("name", name.encode()),))
        letters = list(driver.read_all("dead"))
    assert [(each.key, each.value, each.timestamp) for each in letters] == [
        ("two", '[["two",2]]', 1),
        ("three", '[["three",3]]', 2),
    ]
    for offset, letter in enumerate(letters, 1):
        about = dict(letter.headers)
        assert (about["name"], about["__streams.errors.topic"]) == (letter.key.encode(), b"in")
        assert about["__streams.errors.offset"] == b"%d" % offset


def test_updates_of_one_source_record_that_fail_are_one_dead_letter() -> None:
    program = topology().add_processor("q", Refuses, "p")
    with TopologyTestDriver(program, processing_handler=DeadLetter("dead")) as driver:
        for name in ("one", "two"):
            driver.pipe("in", name, [("a", 2), ("b", 2), ("c", 1)], 5)
        assert [each.key for each in driver.read_all("dead")] == ["one", "two"]
        assert driver.metrics()["q"].dropped == {"skipped": 4}


def test_source_records_that_wait_for_a_letter_count_in_the_budget() -> None:
    puts = [(str(each), each) for each in range(6)] * 2
    for handler, is_full in ((skip, False), (DeadLetter("dead"), True)):
        settings: dict[str, Any] = {"processing_handler": handler, "statestore_cache_max_bytes": 1_500}
        with TopologyTestDriver(topology(), **settings) as driver:
            driver.pipe("in", "k" * 100, puts, 1)
            assert (len(updates(driver)) > 6) == is_full


def test_a_cache_below_a_cache_is_flushed_with_it() -> None:
    class Second(Processor):
        def init(self, context: ProcessorContext) -> None:
            super().init(context)
            self.total = context.get_store("t")
            context.set_flush_listener("t", self.changed)

        def changed(self, record: Record) -> None:
            self.context.forward(record.with_value([record.value.new, record.value.old, None]))

        def process(self, record: Record) -> None:
            self.total.put("all", (self.total.get("all") or 0) + record.value[0])

    second = key_value_store("t", key_serde="str", value_serde="int", cached=True)
    program = (
        Topology()
        .add_source("in", "in", key_serde="str", value_serde="json")
        .add_processor("p", Puts, "in", stores=[STORE])
        .add_processor("q", Second, "p", stores=[second])
        .add_sink("out", "out", "q", key_serde="json", value_serde="json")
    )
    with TopologyTestDriver(program) as driver:
        driver.pipe("in", "k", [("a", 1), ("b", 2), ("a", 5)], 3)
        assert updates(driver) == [("all", 7, None, None, 3)]


def test_a_listener_that_never_ends_is_stopped() -> None:
    class Endless(Puts):
        def changed(self, record: Record) -> None:
            self.store.put(record.key, record.value.new + 1)

    with TopologyTestDriver(topology(Endless)) as driver, pytest.raises(ProcessingError, match="'s' still have"):
        driver.pipe("in", "k", [("a", 1)], 5)


def test_wrong_use() -> None:
    plain = key_value_store("s", key_serde="str", value_serde="int")
    with pytest.raises(TopologyError, match="declare the store with cached=True"):
        TopologyTestDriver(topology(store=plain))

    class Other(Puts):
        pass

    program = topology().add_processor("other", Other, "in", stores=["s"])
    with pytest.raises(TopologyError, match=r"node 'other' .* has that of node 'p'"):
        TopologyTestDriver(program)


def test_the_mock_context_flushes() -> None:
    context = MockProcessorContext(STORE)
    processor = context.start(Puts())
    processor.process(Record("k", [("a", 1), ("a", 2)], 5))
    assert context.forwarded == []
    context.flush()
    assert [each.record.value[:2] for each in context.forwarded] == [[2, None]]


def test_an_update_that_a_flush_makes_leaves_after_those_that_are_older() -> None:
    class Raises(Processor):
        """Puts 2 for other keys into the store above when it gets that of `a`."""

        def process(self, record: Record) -> None:
            store: Any = self.context.get_store("s")
            for key in "bcde" if record.key == "a" else "":
                store.put(key, 2)
            self.context.forward(record)

    made = (
        Topology()
        .add_source("in", "in", key_serde="str", value_serde="json")
        .add_processor("p", Puts, "in", stores=[STORE])
        .add_processor("raises", Raises, "p", stores=["s"])
        .add_sink("out", "out", "raises", key_serde="json", value_serde="json")
    )
    with TopologyTestDriver(made, statestore_cache_max_bytes=800) as driver:
        driver.pipe("in", "k", [[key, 1] for key in "abcd"])
        found = [each[:3] for each in updates(driver)]
        assert found == [(key, 1, None) for key in "abcd"] + [(key, 2, 1) for key in "bcd"] + [("e", 2, None)]
