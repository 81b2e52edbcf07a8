"""Files as sources: JSON lines and Parquet, their positions, changed files, and files that grow."""

from __future__ import annotations

import json
import os
import time as os_time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import ConfigError, Log
from penstock.copying import CopyError, JsonLines, ParquetFiles, copy
from penstock.plugins.copying import json_lines
from penstock.plugins.logs.memory import MemoryLog
from penstock.serdes import MsgpackSerde, PickleSerde

from .interrupting import Interrupted, Stop, ends_after, when_idle
from .reading import records, values


@pytest.fixture
def out(log: Log) -> Log:
    log.create_topic("out", 1)
    return log


# -- JSON lines


def test_lines_are_copied_byte_for_byte(out: Log, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    lines = [
        b'{"id": "a",  "x": 0.10000000000000000001}',
        b'{"id":"b","n":123456789012345678901234567890}',
        '{"id":"\u00e4\u2028","z":[1.50, null]}'.encode(),
        b'{"id":"c"}',
    ]
    file.write_bytes(b"\r\n".join([lines[0], b"", b"  ", *lines[1:]]))
    assert copy(JsonLines(file), "out", log=out, key="id").rows == 4
    assert values(out, "out") == lines
    assert [each.key for each in records(out, "out")[0]] == [b"a", b"b", "\u00e4\u2028".encode(), b"c"]


def test_parsed_numbers_are_exact_or_refused(out: Log, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"n": 9007199254740993, "x": 1.50, "y": -0.0, "z": [1e3]}\n{"x": 0.10000000000000000001}\n')
    with pytest.raises(CopyError, match="line 2: .*the number 0.10000000000000000001 is not a float's"):
        copy(JsonLines(file), "out", log=out, value_serde="msgpack", batch_rows=1)
    (data,) = values(out, "out")
    assert data is not None
    found = MsgpackSerde().deserialize(data)
    assert found == {"n": 9007199254740993, "x": 1.5, "y": 0.0, "z": [1000.0]}
    assert str(found["y"]) == "-0.0"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"n": 1', "the line is no JSON: .* at character 8"),
        (b'{"n": NaN}', "NaN is no JSON"),
        (b"[1]", r"expected a JSON object, found '\[1\]'"),
        (b"null", "expected a JSON object"),
        (b'{"n": 1, "n": 2}', "the name 'n' is there twice"),
        (b'{"n": "\xff"}', "byte 8 of the line is not UTF-8"),
        (b'\xef\xbb\xbf{"n": 1}', "the line is no JSON"),
        (b"[" * 100_000, "maximum recursion depth"),
    ],
)
def test_a_bad_line_is_named_and_those_before_it_are_copied(out: Log, tmp_path: Path, line: bytes, what: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"n":0}\n\n' + line + b'\n{"n":9}\n')
    with pytest.raises(CopyError, match=f"a.jsonl', line 3: {what}"):
        copy(JsonLines(file), "out", log=out)
    assert values(out, "out") == [b'{"n":0}']
    file.write_bytes(b'{"n":0}\n\n{"n":1}\n')  # after the position, so it may change
    assert copy(JsonLines(file), "out", log=out).rows == 1


def test_a_file_that_was_changed_before_the_position_is_refused(out: Log, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"n":0}\n{"n":1}\n')
    copy(JsonLines(file), "out", log=out)
    for content, what in [
        ('{"n":0}\n', "has 8 bytes, and 16 were copied: it was cut, or is another file"),
        ('{"n":5}\n{"n":1}\n', "its first 16 bytes .2 lines. are not those that were copied"),
        ("", "has 0 bytes"),
    ]:
        file.write_text(content)
        with pytest.raises(CopyError, match=what):
            copy(JsonLines(file), "out", log=out)
    file.unlink()
    with pytest.raises(CopyError, match="there is no file"):
        copy(JsonLines(file), "out", log=out)
    os.mkfifo(file)
    with pytest.raises(CopyError, match="a pipe is for `penstock produce`"):
        copy(JsonLines(file), "out", log=out)
    assert len(values(out, "out")) == 2


def test_a_growing_file_is_followed(out: Log, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"n":0}\n{"n":')

    def add(text: str) -> Callable[[], object]:
        def append() -> None:
            with file.open("a") as opened:
                opened.write(text)

        return append

    with pytest.raises(Stop):
        listener = when_idle(add('1}\n{"n":2'), add("}\n"), add('{"n":3}'))
        copy(JsonLines(file), "out", log=out, follow=True, on_progress=listener)
    assert values(out, "out") == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
    assert copy(JsonLines(file), "out", log=out).rows == 1  # its end is the end of the line
    with pytest.raises(CopyError, match="was replaced by another file"):
        other = tmp_path / "other"
        other.write_bytes(file.read_bytes())
        copy(JsonLines(file), "out", log=out, follow=True, on_progress=when_idle(lambda: other.rename(file)))
    with pytest.raises(CopyError, match="has 1 bytes, and"):
        copy(JsonLines(file), "out", log=out, follow=True, on_progress=when_idle(lambda: os.truncate(file, 1)))


def test_a_line_that_would_fill_the_memory_is_refused(
    out: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "_LINE_BYTES", 100)
    file = tmp_path / "a.jsonl"
    file.write_text('{"n": 1}\n{"n": "' + "x" * 100 + '"}\n')
    with pytest.raises(CopyError, match="line 2 has 100 bytes or more"):
        copy(JsonLines(file), "out", log=out)
    assert values(out, "out") == [b'{"n": 1}']


# -- Parquet

EVERY = {
    "int": pa.array([1, None], pa.int64()),
    "large": pa.array([2**64 - 1, 0], pa.uint64()),
    "small": pa.array([0.1, float("nan")], pa.float32()),
    "decimal": pa.array([Decimal("12345678901234567890.50"), None], pa.decimal128(30, 2)),
    "day": pa.array([date(1, 1, 1), date(9999, 12, 31)]),
    "at": pa.array([1_700_000_000_123_456_000, None], pa.timestamp("ns", "UTC")),
    "naive": pa.array([datetime(1969, 12, 31, 23, 59, 59, 999999), None], pa.timestamp("us")),
    "time": pa.array([1_000, None], pa.time64("ns")),
    "lasts": pa.array([timedelta(days=-1, microseconds=1), None], pa.duration("us")),
    "bytes": pa.array([b"\x00\xff", b""]),
    "text": pa.array(["\u00e4", ""]).dictionary_encode(),
    "list": pa.array([[1, None], []]),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"x": {"y": 1}}, {"x": None}]),
}


def test_values_of_parquet_are_exact(out: Log, tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table(EVERY), file)
    copy(ParquetFiles(file), "out", log=out, value_serde="pickle")
    first, second = (PickleSerde().deserialize(each) for each in values(out, "out") if each is not None)
    assert first == {
        "int": 1,
        "large": 2**64 - 1,
        "small": 0.10000000149011612,
        "decimal": Decimal("12345678901234567890.50"),
        "day": date(1, 1, 1),
        "at": datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC),
        "naive": datetime(1969, 12, 31, 23, 59, 59, 999999),
        "time": time(0, 0, 0, 1),
        "lasts": timedelta(days=-1, microseconds=1),
        "bytes": b"\x00\xff",
        "text": "\u00e4",
        "list": [1, None],
        "map": {"a": 1},
        "struct": {"x": {"y": 1}},
    }
    assert str(second["small"]) == "nan" and second["struct"] == {"x": None} and second["map"] is None


def test_nanoseconds_that_python_does_not_hold_are_refused(out: Log, tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"at": pa.array([1], pa.timestamp("ns"))}), file)
    with pytest.raises(CopyError, match="column 'at' of the type timestamp.ns. has a value that Python's type"):
        copy(ParquetFiles(file), "out", log=out)


NANOSECONDS = {
    "map": pa.array([[("a", 1001)]], pa.map_(pa.string(), pa.time64("ns"))),
    "key": pa.array([[(1001, 1)]], pa.map_(pa.timestamp("ns"), pa.int64())),
    "large": pa.array([[1001]], pa.large_list(pa.timestamp("ns"))),
    "fixed": pa.array([[1001]], pa.list_(pa.duration("ns"), 1)),
    "nested": pa.array([{"x": [[("a", 1001)]]}], pa.struct([("x", pa.list_(pa.map_(pa.string(), pa.time64("ns"))))])),
}


@pytest.mark.parametrize("name", NANOSECONDS)
def test_nanoseconds_inside_of_a_value_are_refused(out: Log, tmp_path: Path, name: str) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: NANOSECONDS[name]}), file)
    with pytest.raises(CopyError, match=f"column {name!r} of the type .* has a value that Python's type does not hold"):
        copy(ParquetFiles(file), "out", log=out, value_serde="pickle")


def test_whole_microseconds_inside_of_a_value_are_kept(out: Log, tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    arrays = {
        "map": pa.array([[("a", 2000)]], pa.map_(pa.string(), pa.timestamp("ns"))),
        "large": pa.array([[2000]], pa.large_list(pa.time64("ns"))),
        "fixed": pa.array([[2000]], pa.list_(pa.duration("ns"), 1)),
    }
    pq.write_table(pa.table(arrays), file)
    copy(ParquetFiles(file), "out", log=out, value_serde="pickle")
    (data,) = values(out, "out")
    assert data is not None and PickleSerde().deserialize(data) == {
        "map": {"a": datetime(1970, 1, 1, 0, 0, 0, 2)},
        "large": [time(0, 0, 0, 2)],
        "fixed": [timedelta(microseconds=2)],
    }


def write(path: Path, start: int, end: int, group: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": range(start, end)}), path, row_group_size=group)


def numbers(log: Log) -> list[int]:
    return [json.loads(each)["n"] for each in values(log, "out") if each is not None]


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    group=st.integers(1, 5),
    ends=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 7)), max_size=5),
)
@example(sizes=[12, 3], group=12, ends=[(1, 7), (1, 2), (1, 3)])
def test_a_directory_is_copied_once_wherever_it_ends(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], group: int, ends: list[tuple[int, int]]
) -> None:
    directory, log, start = tmp_path_factory.mktemp("parquet"), MemoryLog(), 0
    log.create_topic("out", 1)
    for number, size in enumerate(sizes):
        write(directory / f"part={number}/x.parquet", start, start + size, group)
        start += size
    for commits, rows in ends:
        try:
            copy(ParquetFiles(directory), "out", log=log, batch_rows=rows, on_progress=ends_after(commits))
        except Interrupted:
            pass
    assert copy(ParquetFiles(directory), "out", log=log).total == start
    assert numbers(log) == list(range(start))
    log.close()


def test_folders_are_columns(out: Log, tmp_path: Path) -> None:
    write(tmp_path / "d" / "day=2024-01-01" / "place=a%2Fb" / "x.parquet", 0, 1)
    write(tmp_path / "d" / "day=__HIVE_DEFAULT_PARTITION__" / "x.parquet", 1, 2)
    write(tmp_path / "d" / "_temporary" / "x.parquet", 8, 9)
    write(tmp_path / "d" / ".hidden.parquet", 8, 9)
    copy(ParquetFiles(tmp_path / "d"), "out", log=out)
    assert values(out, "out") == [b'{"n":0,"day":"2024-01-01","place":"a/b"}', b'{"n":1,"day":null}']


def test_files_that_were_changed_before_the_position_are_refused(out: Log, tmp_path: Path) -> None:
    directory = tmp_path / "d"
    for name in ("b", "d"):
        write(directory / f"{name}.parquet", 0, 4)
    copy(ParquetFiles(directory), "out", log=out)
    write(directory / "e.parquet", 4, 8)
    assert copy(ParquetFiles(directory), "out", log=out).rows == 4  # behind the position: it is copied
    a, b, e = (directory / f"{name}.parquet" for name in "abe")
    changes: list[tuple[Callable[[], None], Callable[[], None], str]] = [
        (lambda: write(a, 0, 1), a.unlink, "was added"),
        (lambda: write(b, 0, 5), lambda: write(b, 0, 4), "or changed"),
        (lambda: write(e, 1, 8), lambda: write(e, 4, 8), "written again"),
        (e.unlink, lambda: write(e, 4, 8), "is gone"),
    ]
    for spoil, repair, what in changes:
        spoil()
        with pytest.raises(CopyError, match=what):
            copy(ParquetFiles(directory), "out", log=out)
        repair()
        assert copy(ParquetFiles(directory), "out", log=out).rows == 0


def test_a_directory_is_followed(out: Log, tmp_path: Path) -> None:
    directory = tmp_path / "d"
    write(directory / "b.parquet", 0, 4)
    half = directory / "c.parquet"

    def finish() -> None:
        write(half, 4, 6)

    with pytest.raises(Stop):
        listener = when_idle(lambda: half.write_bytes(b"PAR1 half of a file"), finish)
        copy(ParquetFiles(directory), "out", log=out, follow=True, on_progress=listener)
    assert numbers(out) == list(range(6))
    with pytest.raises(CopyError, match=r"a.parquet' was added before file .*c.parquet', which was copied already"):
        listener = when_idle(lambda: write(directory / "a.parquet", 0, 1))
        copy(ParquetFiles(directory), "out", log=out, follow=True, on_progress=listener)


def test_what_is_no_parquet(out: Log, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"x" * 100)
    (tmp_path / "worse.parquet").write_bytes(b"x" * 92 + b"\x05\0\0\0PAR1")
    for name, what in [
        ("empty", r"has no file \*.parquet"),
        ("nowhere", "there is no file or directory"),
        ("bad.parquet", "is no whole Parquet file"),
        ("worse.parquet", "cannot be read as Parquet"),
    ]:
        with pytest.raises(CopyError, match=what):
            copy(ParquetFiles(tmp_path / name), "out", log=out)


# -- DataFrames


def test_a_frame_of_pandas(out: Log) -> None:
    frame = pd.DataFrame(
        {
            "id": ["a", None],
            "n": pd.array([2**60 + 1, None], "Int64"),
            "x": [0.5, float("nan")],
            "at": [pd.Timestamp("2024-01-01T00:00:00Z"), pd.NaT],
            "price": [Decimal("1.10"), None],
        },
        index=[7, 7],
    )
    copy(frame, "out", log=out, name="frame")
    assert values(out, "out") == [
        b'{"id":"a","n":1152921504606846977,"x":0.5,"at":"2024-01-01T00:00:00Z","price":"1.10"}',
        b'{"id":null,"n":null,"x":null,"at":null,"price":null}',
    ]
    with pytest.raises(CopyError, match="the first 2 are not those"):
        copy(frame.iloc[::-1], "out", log=out, name="frame")
    with pytest.raises(ConfigError, match="order_by is for a Spark DataFrame"):
        copy(frame, "out", log=out, name="frame", order_by="id")


ZURICH = ZoneInfo("Europe/Zurich")
OBJECTS: list[Any] = [
    Decimal("1.5"), Decimal("1.50"), 1, 2.5, 2**70, True, "b", b"a", {"a": 1}, {"b": [Decimal("2")]},
    date(2024, 1, 1), datetime(2024, 1, 1, 5), datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZURICH), timedelta(microseconds=1), UUID(int=5), None,
]  # fmt: skip


def test_objects_of_pandas_keep_their_own_types(out: Log) -> None:
    frame = pd.DataFrame({"x": pd.Series(OBJECTS, dtype=object)})
    copy(frame, "out", log=out, name="frame", value_serde="msgpack")
    found = [MsgpackSerde().deserialize(each)["x"] for each in values(out, "out") if each is not None]
    assert list(map(repr, found)) == list(map(repr, OBJECTS))


@given(counts=st.lists(st.integers(0, 4), max_size=4), rows=st.permutations(OBJECTS))
def test_a_frame_of_pandas_grows(counts: list[int], rows: list[Any]) -> None:
    """Rows that are appended change nothing in those before them."""
    log, end = MemoryLog(), 0
    log.create_topic("out", 1)
    for count in counts:
        end += count
        frame = pd.DataFrame({"x": pd.Series(rows[:end], dtype=object)})
        copy(frame, "out", log=log, name="frame", value_serde="msgpack")
    found = [MsgpackSerde().deserialize(each)["x"] for each in values(log, "out") if each is not None]
    assert list(map(repr, found)) == list(map(repr, rows[:end]))


def test_objects_of_numpy_and_pandas_are_those_of_python(out: Log) -> None:
    winter = pd.Timestamp("2024-10-27T01:30:00Z").tz_convert("Europe/Zurich")  # pandas has zones of pytz
    pairs = [
        (np.int64(3), 3),
        (np.float64("nan"), None),
        (np.array([1, 2]), [1, 2]),
        (np.array(["2024-01-01", "NaT"], "datetime64[ns]"), [datetime(2024, 1, 1), None]),
        (np.datetime64("2024-01-01T00:00", "ns"), datetime(2024, 1, 1)),
        (winter, datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZURICH)),
        (winter.to_pydatetime(), datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZURICH)),
        (pd.Timedelta("1s"), timedelta(seconds=1)),
        ((pd.NA, pd.NaT), [None, None]),
    ]
    for kind in ("object", "category"):
        rows = [each for each in pairs if kind == "object" or not isinstance(each[0], (np.ndarray, tuple))]
        frame = pd.DataFrame({"x": pd.Series([row for row, _ in rows], dtype=object).astype(kind)})
        copy(frame, "out", log=out, name=kind, value_serde="msgpack", restart=True)
        found = [MsgpackSerde().deserialize(each)["x"] for each in values(out, "out") if each is not None]
        assert list(map(repr, found[-len(rows) :])) == [repr(row) for _, row in rows]


@pytest.mark.parametrize("value", [pd.Timestamp(1), pd.Timedelta(1), np.datetime64(1, "ns"), [{"x": pd.Timestamp(1)}]])
def test_nanoseconds_of_objects_are_refused(out: Log, value: Any) -> None:
    frame = pd.DataFrame({"x": pd.Series([value], dtype=object)})
    with pytest.raises(CopyError, match="the DataFrame, rows 1 and after: column 'x': .* (has nanosec|would lose)"):
        copy(frame, "out", log=out, name="frame", value_serde="msgpack")


@pytest.fixture
def zurich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is in Zurich."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Zurich")
        os_time.tzset()
        yield
    os_time.tzset()


@pytest.mark.spark
@pytest.mark.usefixtures("zurich")
def test_timestamps_of_spark_are_instants(out: Log, spark: Any) -> None:
    frame = spark.range(2).selectExpr(
        "id",
        "timestamp_seconds(1729989000 + 3600 * id) AS at",
        "timestamp_ntz'2024-10-27 02:30:00' AS local",
        "if(id = 1, null, named_struct('x', array(map('a', timestamp_seconds(1729992600)), null))) AS nested",
    )
    copy(frame, "out", log=out, name="frame", order_by="id", timestamp="at")
    found = records(out, "out")[0]
    assert [each.timestamp for each in found] == [1729989000000, 1729992600000]
    rows = [json.loads(each.value) for each in found]
    assert [row["at"] for row in rows] == ["2024-10-27T00:30:00Z", "2024-10-27T01:30:00Z"]
    assert {row["local"] for row in rows} == {"2024-10-27T02:30:00"}
    assert [row["nested"] for row in rows] == [{"x": [{"a": "2024-10-27T01:30:00Z"}, None]}, None]


@pytest.mark.spark
def test_frames_of_spark_whose_rows_are_no_dicts(out: Log, spark: Any) -> None:
    for columns, what in [
        (["id", "1 AS x", "2 AS x"], "two columns have the name 'x'"),
        (["id", "named_struct('x', 1, 'x', 2) AS y"], "two columns have the name 'x'"),
        (["id", "map(named_struct('x', 1), 2) AS y"], "keys of a map<struct<x:int>,int> are no keys of a dict"),
    ]:
        with pytest.raises(CopyError, match=what):
            copy(spark.range(1).selectExpr(*columns), "out", log=out, name="frame", order_by="id")


@pytest.mark.spark
def test_a_frame_of_spark(out: Log, spark: Any) -> None:
    frame = spark.range(0, 50, 1, 4).selectExpr("id", "cast(id as decimal(10, 2)) AS price", "struct(id AS x) AS y")
    with pytest.raises(ConfigError, match="a Spark DataFrame has no order of its own"):
        copy(frame, "out", log=out, name="frame")
    copy(frame.where("id < 20"), "out", log=out, name="frame", order_by=["id"], batch_rows=7)
    assert copy(frame.repartition(3), "out", log=out, name="frame", order_by="id").rows == 30
    assert values(out, "out") == [b'{"id":%d,"price":"%d.00","y":{"x":%d}}' % (n, n, n) for n in range(50)]
