"""Verbs that look at one record at a time, repartition topics, and the errors that a newcomer meets."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    PenstockError,
    Processor,
    ProcessorContext,
    Record,
    TopologyError,
    ValueTransformer,
    key_value_store,
)
from penstock.operator import Operator, Run
from penstock.plugins.dsl import KStream, StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver

Write = Callable[[KStream[Any, Any]], KStream[Any, Any] | None]


def answers(write: Write, *records: tuple[Any, Any], **settings: Any) -> list[tuple[Any, Any]]:
    """Return what comes out of `write(stream)` for records of (key, value)."""
    builder = StreamsBuilder()
    made = write(builder.stream("in"))
    if made is not None:
        made.to("out")
    with TopologyTestDriver(Application("app", builder), **settings) as driver:
        for key, value in records:
            driver.pipe("in", key, value, timestamp=1)
        return [(record.key, record.value) for record in driver.read_all("out")]


def test_every_function_gets_the_value_and_with_key_the_key_first() -> None:
    def write(stream: KStream[Any, Any]) -> KStream[Any, Any]:
        return (
            stream.filter(lambda value: value != "drop")
            .filter_not(lambda key, value: key == value, with_key=True)
            .map_values(lambda key, value: f"{key}={value}", with_key=True)
            .flat_map_values(lambda value: [value, value.upper()])
            .select_key(lambda value: value[0])
            .map(lambda key, value: (value, key), with_key=True)
        )

    assert answers(write, ("a", "drop"), ("b", "b"), ("c", "x")) == [("c=x", "c"), ("C=X", "C")]


@pytest.mark.parametrize("with_other", [False, True])
@pytest.mark.parametrize("reader", ["processor", "topic", "partitioner"])
def test_functions_that_get_whole_records_get_them_by_name(reader: str, with_other: bool) -> None:
    """Between operators records are plain tuples; a processor, a topic chooser and a partitioner get a Record."""
    seen: list[Any] = []

    class Look(Processor):
        def process(self, record: Record) -> None:
            seen.append(record)
            self.context.forward(record)

    def topic(record: Record, metadata: Any) -> str:
        seen.append(record)
        return "chosen"

    def partition(name: str, record: Record, count: int) -> int:
        seen.append(record)
        return 0

    builder = StreamsBuilder()
    stream = builder.stream("in")
    for each in (stream, stream.filter(lambda value: True), stream.map_values(str)):
        if with_other:
            each.foreach(lambda value: None)
        if reader == "processor":
            each.process(Look).to("out")
        elif reader == "topic":
            each.to(topic)
        else:
            each.to("out", partitioner=partition)
    with TopologyTestDriver(Application("app", builder)) as driver:
        driver.pipe("in", "k", "v", timestamp=7)
    assert len(seen) == 3
    assert all(type(each) is Record and each == ("k", "v", 7, ()) for each in seen)


def test_what_is_not_a_pair_stops_the_task_at_its_record() -> None:
    with pytest.raises(Exception, match=r"'KSTREAM-MAP-0000000001'.*must return a \(key, value\) pair, found 'ab'"):
        answers(lambda stream: stream.map(lambda value: value), ("k", "ab"))


def test_branches_take_the_first_that_fits() -> None:
    def write(stream: KStream[Any, Any]) -> None:
        branches = stream.branch({"long": lambda v: len(v) > 3, "a": lambda v: "a" in v}, default="rest")
        for name, each in branches.items():
            each.map_values(lambda value, name=name: f"{name}: {value}").to("out")  # type: ignore[misc]

    values = ["banana", "a", "b"]
    assert answers(write, *((None, value) for value in values)) == [
        (None, "long: banana"),
        (None, "a: a"),
        (None, "rest: b"),
    ]


def test_a_topic_that_is_read_twice_has_one_source() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    builder.stream("in").map_values(str.upper).to("loud")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", "k", "v", timestamp=1)
        assert (len(driver.read_all("out")), len(driver.read_all("loud"))) == (1, 1)
    builder.stream("in", value_serde="int").to("numbers")
    with pytest.raises(TopologyError, match="in is read twice, and with different serdes"):
        builder.build()


class Words(Processor):
    def __init__(self, separator: str) -> None:
        self._separator = separator

    def process(self, record: Record) -> None:
        for word in record.value.split(self._separator):
            self.context.forward(record.with_key(word))


class Rekeys(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_key("other"))


class RekeyingOperator(Operator):
    def bind(self, context: ProcessorContext) -> Run:
        send = context.send
        return lambda record: send(("other", *record[1:]))


class Seen(ValueTransformer):
    def init(self, context: Any) -> None:
        super().init(context)
        self.seen = context.get_store("seen")

    def transform(self, key: Any, value: Any) -> Any:
        self.seen.put(key, (self.seen.get(key) or 0) + 1)
        return str(self.seen.get(key))


def test_processors_of_the_user() -> None:
    def write(stream: KStream[Any, Any]) -> KStream[Any, Any]:
        words = stream.process(Words, separator=",").repartition("words")
        return words.process_values(Seen, stores=[key_value_store("seen")])

    assert answers(write, (None, "a,b"), (None, "a")) == [("a", "1"), ("b", "1"), ("a", "2")]
    for rekeys in (Rekeys, RekeyingOperator):
        with pytest.raises(Exception, match="process_values: the processor forwards key 'other'"):
            answers(lambda stream, rekeys=rekeys: stream.process_values(rekeys), ("k", "v"))  # type: ignore[misc]


def test_an_installed_processor_is_named() -> None:
    def write(stream: KStream[Any, Any]) -> KStream[Any, Any]:
        return stream.process("contrib.dedupe", stores=[key_value_store("seen", ttl="1h")], store="seen")

    assert answers(write, ("k", "v"), ("k", "v")) == [("k", "v")]


def test_a_function_may_choose_the_topic() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to(lambda record, metadata: f"out-{record.key}")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", "k", "v", timestamp=1)
        assert driver.output_topics() == ["out-k"]


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    for options in ({"label": "here"}, {"text": lambda key, value: f"{key}!{value}"}):
        builder = StreamsBuilder()
        builder.stream("in").print(**options)
        with TopologyTestDriver(builder) as driver:
            driver.pipe("in", "k", "v")
    assert capsys.readouterr().out == "[here]: k, v\n[KSTREAM-SOURCE-0000000000]: k!v\n"


def test_printing_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = StreamsBuilder()
    builder.stream("in").print(label="here", file=tmp_path / "printed.txt")
    for value in ("one", "zwölf"):
        with TopologyTestDriver(builder) as driver:
            driver.pipe("in", "k", value)
    assert (tmp_path / "printed.txt").read_text(encoding="utf-8") == "[here]: k, one\n[here]: k, zwölf\n"
    assert not capsys.readouterr().out


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in").print(file=tmp_path / "missing" / "printed.txt", name="shown")
    with pytest.raises(PenstockError, match=r"node 'shown': print cannot append to the file .*name a file in a dir"):
        TopologyTestDriver(builder)
    with pytest.raises(TopologyError, match="print: file: expected the path of a file, found 7"):
        builder.stream("other").print(file=7)  # type: ignore[arg-type]


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "two arguments": (
        lambda stream: stream.map_values(lambda key, value: value),
        r"map_values: its function is called with \(value\).*with_key=True gives it the key first",
    ),
    "one argument": (
        lambda stream: stream.filter(lambda value: True, with_key=True),
        r"filter: its predicate is called with \(key, value\).*leave out with_key=True",
    ),
    "no function": (lambda stream: stream.map_values("upper"), r"map_values: expected a function of \(value\)"),
    "no stream": (lambda stream: stream.merge("other"), "merge: expected a KStream, found 'other'"),
    "name": (lambda stream: stream.filter(bool, name="a b"), "name='a b': expected 1 to 249 letters"),
    "stores": (lambda stream: stream.process(Words, stores="seen"), r"write stores=\['seen'\]"),
    "no branch": (lambda stream: stream.branch({}), "branch: expected at least one predicate"),
    "same branch": (lambda stream: stream.split().branch(bool, "a").branch(bool, "a"), "branch 'a' is there already"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_at_the_verb(mistake: str) -> None:
    write, message = MISTAKES[mistake]
    with pytest.raises(TopologyError, match=message):
        write(StreamsBuilder().stream("in"))


def test_topics_or_a_pattern() -> None:
    for given in ((), ("in",)):
        pattern = "in" if given else None
        with pytest.raises(TopologyError, match="stream: expected names of topics, or pattern="):
            StreamsBuilder().stream(*given, pattern=pattern)


def test_a_pattern_in_place_of_a_topic_is_told_its_keyword() -> None:
    with pytest.raises(TopologyError, match=r"expected the name of a topic, found re.compile.*stream\(pattern="):
        StreamsBuilder().stream(re.compile("in-.*"))  # type: ignore[arg-type]


def test_numbered_names_of_state_are_warned_of_once_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    builder = StreamsBuilder()
    builder.stream("in").select_key(str.lower).repartition().to("out")
    how = "'KSTREAM-REPARTITION-0000000002-repartition': repartition(\"NAME\")"
    with caplog.at_level(logging.WARNING, "penstock.dsl"):
        Application("app", builder).with_settings(commit_interval="1s")
    assert [record.getMessage().count(how) for record in caplog.records] == [1]
    with pytest.raises(TopologyError, match="explicit_internal_names: .*to name them|To name them"):
        Application("app", builder, explicit_internal_names=True)


def test_a_builder_can_be_built_again_and_added_to() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.select_key(str.lower).repartition("r").to("out")
    texts = [
        Application("app", builder, topology_optimization=each).program.describe() for each in ("all", "none", "all")
    ]
    assert texts[0] == texts[1] == texts[2]
    stream.to("more")
    assert "more" in builder.build().build().describe()
