"""A copy writes each row once, in order per key, wherever it ends and begins again; and says what it cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Application,
    ConfigError,
    FencedError,
    Log,
    ManualClock,
    Record,
    Settings,
    TopicPartition,
    Topology,
    UnknownTopicError,
)
from penstock.copying import CopyError, CopySummary, JsonLines, RowBatch, Rows, Source, SourceReader, copy
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.serdes import MsgpackSerde, of

from ..kafka.names import fresh_name
from .interrupting import Interrupted, ends_after
from .reading import records, values

LOGS = ["memory", "local", pytest.param("kafka", marks=pytest.mark.broker)]


@pytest.fixture(params=LOGS)
def each_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    if request.param == "memory":
        place = "memory:" + fresh_name("log")
    else:
        place = "local:log" if request.param == "local" else ""
        place = place or f"kafka:{request.getfixturevalue('broker').bootstrap}"
    with closing(open_log(Settings(log=place, data_dir=str(tmp_path)))) as log:
        yield log


class Breaking(Source):
    """A source whose reader fails before its read number `after`."""

    def __init__(self, source: Source, after: int) -> None:
        self._source, self._after = source, after
        self.kind = source.kind  # type: ignore[misc]

    @property
    def name(self) -> str:
        return self._source.name

    def open(self, position: Any, *, follow: bool) -> SourceReader:
        return _BreakingReader(self._source.open(position, follow=follow), self._after)


class _BreakingReader(SourceReader):
    def __init__(self, reader: SourceReader, after: int) -> None:
        self._reader, self._left = reader, after

    def read(self, most: int) -> RowBatch | None:
        if not self._left:
            raise Interrupted
        self._left -= 1
        return self._reader.read(most)

    def close(self) -> None:
        self._reader.close()


def as_pairs(found: dict[int, list[Record]]) -> dict[bytes, list[Any]]:
    """Return the values of each key, in order."""
    pairs: dict[bytes, list[Any]] = {}
    for partition in found.values():
        for record in partition:
            pairs.setdefault(record.key, []).append(MsgpackSerde().deserialize(record.value)["n"])
    return pairs


@given(
    keys=st.lists(st.sampled_from("abcde"), max_size=30),
    ends=st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(1, 7)), max_size=6),
)
def test_each_row_is_written_once_and_in_order_wherever_it_ends(keys: list[str], ends: list[Any]) -> None:
    rows = [{"id": key, "n": number} for number, key in enumerate(keys)]
    with closing(MemoryLog()) as log:
        log.create_topic("out", 3)
        options: dict[str, Any] = {"log": log, "name": "rows", "key": "id", "value_serde": "msgpack"}
        for is_after_commit, count, size in ends:
            source: Source = Rows(rows)
            try:
                if is_after_commit:
                    copy(source, "out", batch_rows=size, on_progress=ends_after(count), **options)
                else:
                    copy(Breaking(source, count - 1), "out", batch_rows=size, **options)
            except Interrupted:
                pass
        summary = copy(rows, "out", **options)
        assert summary.total == len(rows)
        expected: dict[bytes, list[int]] = {}
        for row in rows:
            expected.setdefault(str(row["id"]).encode(), []).append(int(str(row["n"])))
        assert as_pairs(records(log, "out")) == expected


def test_a_call_continues_on_each_log(each_log: Log) -> None:
    rows = [{"id": str(number % 3), "n": number} for number in range(20)]
    topic = fresh_name("out")
    options: dict[str, Any] = {"log": each_log, "name": topic, "key": "id", "value_serde": "msgpack", "batch_rows": 3}
    with pytest.raises(Interrupted):
        copy(rows, topic, partitions=2, on_progress=ends_after(2), **options)
    assert len(values(each_log, topic)) == 6
    with pytest.raises(Interrupted):
        copy(Breaking(Rows(rows), 2), topic, **options)
    assert copy(rows, topic, **options) == CopySummary(topic, topic, 8, 20)
    assert copy(rows, topic, **options) == CopySummary(topic, topic, 0, 20)
    assert as_pairs(records(each_log, topic)) == {
        str(key).encode(): [*range(key, 20, 3)] for key in range(3)
    }  # fmt: skip


def test_a_second_copy_of_the_name_fences_the_first(each_log: Log) -> None:
    topic, rows = fresh_name("out"), [{"n": number} for number in range(9)]
    options: dict[str, Any] = {"log": each_log, "name": topic, "batch_rows": 2}

    def begin_another(summary: CopySummary, reason: str) -> None:
        if summary.total == 4:
            copy(rows, topic, **options)

    with pytest.raises(FencedError, match=f"copy '{topic}' to topic '{topic}' was begun by another process"):
        copy(rows, topic, partitions=1, on_progress=begin_another, **options)
    assert values(each_log, topic) == [b'{"n":%d}' % number for number in range(9)]


def test_a_topic_that_was_made_again_gets_all_rows(each_log: Log) -> None:
    topic, rows = fresh_name("out"), [{"n": number} for number in range(3)]
    options: dict[str, Any] = {"log": each_log, "name": topic}
    copy(rows, topic, partitions=1, **options)
    each_log.delete_topic(topic)
    assert copy(rows, topic, partitions=2, **options).rows == 3
    assert len(values(each_log, topic)) == 3


def test_a_restart_copies_all_rows_again(each_log: Log) -> None:
    topic, rows = fresh_name("out"), [{"n": number} for number in range(3)]
    options: dict[str, Any] = {"log": each_log, "name": topic}
    assert copy(rows, topic, partitions=1, restart=True, **options).total == 3
    with pytest.raises(Interrupted):
        copy(Breaking(Rows(rows[:1]), 0), topic, restart=True, **options)
    # Forgotten at once: the next call begins at the first row, whichever that is now.
    assert copy([{"n": 7}, *rows], topic, **options).total == 4
    assert values(each_log, topic) == [b'{"n":%d}' % number for number in (0, 1, 2, 7, 0, 1, 2)]


def test_names_and_topics_have_positions_of_their_own(log: Log) -> None:
    rows = [{"n": 1}]
    for topic in ("a", "b"):
        log.create_topic(topic, 1)
        for name in ("x", "y"):
            assert copy(rows, topic, log=log, name=name).rows == 1
    assert values(log, "a") == values(log, "b") == [b'{"n":1}'] * 2


def test_other_rows_before_the_position_are_refused(log: Log) -> None:
    log.create_topic("out", 1)
    copy([{"n": 1}, {"n": 2}], "out", log=log, name="rows")
    for rows, what in [
        ([{"n": 1}], "there are 1, and 2 were copied"),
        ([{"n": 1}, {"n": 3}, {"n": 4}], "the first 2 are not those"),
        ([{"n": 2}, {"n": 1}], "in another order"),
        ([{"n": 1}, {"n": 2.0}], "the first 2 are not those"),
    ]:
        with pytest.raises(CopyError, match=what) as error:
            copy(rows, "out", log=log, name="rows")
        assert "give its copy another name; to copy all rows again, restart it" in str(error.value)
    assert len(values(log, "out")) == 2


def test_another_kind_of_source_is_refused(log: Log, tmp_path: Path) -> None:
    log.create_topic("out", 1)
    copy([{"n": 1}], "out", log=log, name="rows")
    file = tmp_path / "rows.jsonl"
    file.write_text('{"n": 1}\n')
    with pytest.raises(CopyError, match="copy 'rows' to topic 'out' was one of rows, and file .* is json lines"):
        copy(JsonLines(file), "out", log=log, name="rows")


# -- records


@dataclass
class Order:
    id: str
    price: Decimal
    day: date
    data: bytes


ORDER = {"id": "a", "price": Decimal("1.50"), "day": date(2024, 2, 29), "data": b"\xff"}


def test_json_has_what_of_reads(log: Log) -> None:
    log.create_topic("out", 1)
    copy([ORDER], "out", log=log, name="rows")
    copy([Order(**ORDER)], "out", log=log, name="dataclasses")  # type: ignore[arg-type]
    copy([ORDER], "out", log=log, name="of", value_serde=of(Order))
    data = b'{"id":"a","price":"1.50","day":"2024-02-29","data":"/w=="}'
    assert values(log, "out") == [data] * 3
    assert of(Order).deserialize(data) == Order(**ORDER)  # type: ignore[arg-type]


def test_msgpack_has_the_values_themselves(log: Log) -> None:
    log.create_topic("out", 1)
    row = {**ORDER, "big": 2**70, "nan": float("inf"), "at": datetime(2024, 1, 1, 1, 2, 3, 456, tzinfo=UTC)}
    copy([row], "out", log=log, name="rows", value_serde="msgpack")
    (data,) = values(log, "out")
    assert data is not None and MsgpackSerde().deserialize(data) == row


def test_parts_of_a_record(log: Log) -> None:
    log.create_topic("out", 1)
    rows = [
        {"a": "x", "b": 1, "at": datetime(2024, 5, 1, 12, tzinfo=UTC), "by": "me", "text": "hello"},
        {"a": "y", "b": 2, "at": "2024-05-01T14:00:00+02:00", "by": None, "text": None},
        {"a": "y", "b": 3, "at": 1714564800000, "by": b"\xff", "text": "!"},
        {"a": "y", "b": 4, "at": datetime(2024, 5, 1, 12), "by": {"n": 1}, "text": "?"},
        {"a": "y", "b": 5, "at": date(2024, 5, 1), "by": 5, "text": ""},
    ]
    copy(
        rows, "out", log=log, name="rows", key=["a", "b"], value="text", timestamp="at", headers={"from": "test"},
        header_columns="by", tombstones=True, key_serde="json", value_serde="str",
    )  # fmt: skip
    noon, midnight, static = 1714564800000, 1714521600000, ("from", b"test")
    assert records(log, "out")[0] == [
        Record(b'["x",1]', b"hello", noon, (static, ("by", b"me"))),
        Record(b'["y",2]', None, noon, (static, ("by", None))),
        Record(b'["y",3]', b"!", noon, (static, ("by", b"\xff"))),
        Record(b'["y",4]', b"?", noon, (static, ("by", b'{"n":1}'))),
        Record(b'["y",5]', b"", midnight, (static, ("by", b"5"))),
    ]


def test_rows_without_a_time_have_that_of_copying(log: Log) -> None:
    log.create_topic("out", 1)
    copy([{"n": 1}], "out", log=log, name="rows", clock=ManualClock(77))
    assert records(log, "out")[0] == [Record(None, b'{"n":1}', 77)]


@pytest.mark.parametrize(
    ("row", "options", "what"),
    [
        ({"n": None}, {"key": "n", "key_serde": "int"}, "row 2: the column 'n' of the key is null"),
        ({"n": 1}, {"key": "m"}, "row 1: there is no column 'm'; there are n"),
        ({"n": 2}, {"key": "n"}, "row 1: the key 0: .*--key-serde"),
        ({"n": None}, {"value": "n"}, "row 2: the value, column 'n', is null; with tombstones it deletes the key"),
        ({"n": "soon"}, {"timestamp": "n"}, "row 2: the timestamp, column 'n', is 'soon'"),
        ({"n": True}, {"timestamp": "n"}, "row 2: the timestamp, column 'n', is True"),
        ({"n": float("nan")}, {}, "row 2: .*n is nan, which JSON does not have"),
        ({"n": 2**64}, {}, "row 2: .*serde 'json': cannot write"),
        ({"n": object()}, {"value_serde": "pickle"}, "row 2: .*has no text form"),
    ],
)
def test_a_row_of_which_no_record_can_be_made(log: Log, row: Any, options: Any, what: str) -> None:
    log.create_topic("out", 1)
    with pytest.raises(CopyError, match=f"{what}.*copy 'rows' to topic 'out'"):
        copy([{"n": 0}, row], "out", log=log, name="rows", batch_rows=1, **options)


def test_a_record_that_the_topic_refuses_is_named(each_log: Log) -> None:
    large, compacted = fresh_name("out"), fresh_name("out")
    each_log.create_topic(large, 1, {"max.message.bytes": "2000"})
    each_log.create_topic(compacted, 1, {"cleanup.policy": "compact"})
    rows = [{"n": 0}, {"n": 1}, {"n": "x" * 5_000}]
    with pytest.raises(CopyError, match=f"row 3: .*{large}"):
        copy(rows, large, log=each_log, name=large)
    with pytest.raises(CopyError, match=f"row 1: .*{compacted}"):
        copy(rows, compacted, log=each_log, name=large)
    assert values(each_log, large) == values(each_log, compacted) == []


@pytest.mark.broker
def test_it_is_exactly_once_whatever_the_settings_say(broker: KafkaBroker) -> None:
    """Its records are in a transaction, whose end has an offset of its own."""
    topic, place = fresh_name("out"), f"kafka:{broker.bootstrap}"
    settings = Settings(log=place, processing_guarantee="at_least_once")
    with closing(open_log(settings)) as log:
        log.create_topic(topic, 1)
        copy([{"n": 0}, {"n": 1}], topic, log=settings, name=topic)
        first = TopicPartition(topic, 0)
        assert log.end_offsets([first], stable=False) == {first: 3}
        application = Application("app", Topology().add_source("in", topic), log=place, key_serde="int")
        copy([{"n": 0}], topic, log=application, name=f"{topic}-2", key="n")
        assert records(log, topic)[0][2].key == bytes(8)


@pytest.mark.broker
def test_an_offset_that_the_brokers_forgot_counts(broker: KafkaBroker) -> None:
    """As those of a group without members, some days after they were committed."""
    topic, rows = fresh_name("out"), [{"n": 0}, {"n": 1}]
    options: dict[str, Any] = {"log": f"kafka:{broker.bootstrap}", "name": topic}
    copy(rows, topic, partitions=1, batch_rows=1, **options)
    admin, group = AdminClient({"bootstrap.servers": broker.bootstrap}), f"copy-{topic}"
    admin.delete_consumer_groups([group])[group].result()
    assert copy([*rows, {"n": 2}], topic, **options) == CopySummary(topic, topic, 1, 3)


def test_rows_before_a_bad_one_are_written_and_it_is_tried_again(log: Log) -> None:
    log.create_topic("out", 1)
    rows: list[Any] = [{"n": 0}, {"n": 1}]
    with pytest.raises(CopyError, match=r"row 3: column 'n': .*rows copied before it: 2"):
        copy([*rows, {"n": {"x": 2**64}}], "out", log=log, name="other", batch_rows=1)
    assert values(log, "out") == [b'{"n":0}', b'{"n":1}']


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "the rows have no name"),
        ({"name": "a/b"}, "name 'a/b': expected"),
        ({"name": "a", "batch_rows": 0}, "batch_rows: expected"),
        ({"name": "a", "tombstones": True}, "name it as the value"),
        ({"name": "a", "tombstones": True, "value": "n"}, "name the columns of the key"),
        ({"name": "a", "follow": True}, "they cannot be followed"),
        ({"name": "a", "order_by": "n"}, "order_by is for a Spark DataFrame"),
        ({"name": "a", "partitions": 2}, "topic 'out' has 1 partitions, and 2 were given"),
    ],
)
def test_options_that_do_not_fit(log: Log, options: Any, what: str) -> None:
    log.create_topic("out", 1)
    with pytest.raises(ConfigError, match=what):
        copy([{"n": 0}], "out", log=log, **options)
    assert values(log, "out") == []


def test_a_missing_topic_is_made_only_if_asked(log: Log) -> None:
    with pytest.raises(UnknownTopicError, match="give the number of its partitions"):
        copy([{"n": 0}], "out", log=log, name="a")
    copy([{"n": 0}], "out", log=log, name="a", partitions=3)
    assert log.topic("out").partitions == 3
    assert log.committed("copy-a", [TopicPartition("out", 0)]) == {TopicPartition("out", 0): 1}
