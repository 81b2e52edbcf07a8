"""Parquet files in the test driver: when a file is complete, its names and bytes, directories, manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock import Application, ConfigError, SinkError
from penstock.contrib.parquet import parquet, read_files, read_manifests
from penstock.dsl import StreamsBuilder
from penstock.testing import MemorySink, TopologyTestDriver

from .reading import content, counted, rows_in

DAY = 86_400_000
COLUMNS = {"name": "string", "n": "int64"}


def program(location: Path, **options: Any) -> StreamsBuilder:
    given = {"columns": COLUMNS, "key": "name", **options}
    builder = StreamsBuilder()
    builder.stream("in", value_serde="int").to_sink(parquet(str(location), **given), "files")
    return builder


@contextmanager
def driven(location: Path, **options: Any) -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(program(location, **options), reopen_tasks=True) as driver:
        yield driver


def pipe(driver: TopologyTestDriver, numbers: range, step: int = 1) -> None:
    driver.pipe_many("in", [(f"k{number}", number, number * step) for number in numbers])


def sizes(location: Path) -> list[int]:
    return [manifest.rows for manifest in read_manifests(str(location))]


def test_a_file_ends_at_its_limits(tmp_path: Path) -> None:
    with driven(tmp_path, max_rows=4, max_age="1m") as driver:
        pipe(driver, range(3))
        assert sizes(tmp_path) == []
        pipe(driver, range(3, 13))  # several in one commit
        assert sizes(tmp_path) == [4, 4, 4]
        driver.advance_wall_clock("59s")
        assert sizes(tmp_path) == [4, 4, 4]
        driver.advance_wall_clock("1s")
        assert sizes(tmp_path) == [4, 4, 4, 1]
        driver.advance_wall_clock("1h")
    assert counted(tmp_path) == {(f"k{number}", number): 1 for number in range(13)}
    assert [(each.first_offset, each.next_offset) for each in read_manifests(str(tmp_path))] == [
        (0, 4), (4, 8), (8, 12), (12, 13)
    ]  # fmt: skip


def test_a_file_ends_at_its_bytes(tmp_path: Path) -> None:
    with driven(tmp_path, max_bytes=2_000) as driver:
        for first in range(0, 500, 50):
            pipe(driver, range(first, first + 50))
    assert len(sizes(tmp_path)) > 2
    assert max(sizes(tmp_path)) <= 140
    assert all(pq.ParquetFile(file).read().nbytes <= 2_600 for file in read_files(str(tmp_path)))


def test_each_commit_makes_a_file_without_an_age(tmp_path: Path) -> None:
    with driven(tmp_path, max_age="0s") as driver:
        for number in range(3):
            pipe(driver, range(number, number + 1))
        assert sizes(tmp_path) == [1, 1, 1]
        rest = {key for key, _ in driver.store("files-staged").all()}
    assert rest == {"state"}  # nothing stays behind


def test_directories_are_of_the_records_times(tmp_path: Path) -> None:
    forms = {"day": "%Y-%m-%d", "at": "%H:%M"}
    columns = {**COLUMNS, "at_ms": "timestamp[ms, tz=UTC]"}
    with driven(tmp_path, max_rows=6, partition_by=forms, timestamp="at_ms", columns=columns) as driver:
        pipe(driver, range(6), DAY // 3)
        driver.pipe("in", "late", 7, timestamp=50 * DAY - 1)
        pipe(driver, range(10, 15), 1000)
    assert [len(each.files) for each in read_manifests(str(tmp_path))] == [6, 2]
    hive = ds.partitioning(flavor="hive", schema=pa.schema([("day", pa.string()), ("at", pa.string())]))
    table = ds.dataset(str(tmp_path), partitioning=hive).to_table()
    found = {(row["name"], row["day"], row["at"]) for row in table.to_pylist()}
    assert {("k0", "1970-01-01", "00:00"), ("k5", "1970-01-02", "16:00"), ("late", "1970-02-19", "23:59")} <= found
    for row in table.to_pylist():
        assert row["at_ms"].strftime("%Y-%m-%d %H:%M") == f"{row['day']} {row['at']}"
    assert table.num_rows == 12  # a reader of directories finds the same
    assert counted(tmp_path).total() == 12
    assert "__timestamp" not in rows_in(tmp_path)[0]


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for number, chunks in enumerate([(10, 10, 10), (1, 2, 27), (30,)]):
        location = tmp_path / str(number)
        location.mkdir()
        with driven(location, max_rows=15, partition_by={"day": "%Y-%m-%d"}) as driver:
            first = 0
            for count in chunks:
                pipe(driver, range(first, first + count), DAY // 10)
                first += count
        found.append({name: data for name, data in content(location).items() if not name.startswith("_manifest")})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4


def test_manifests_name_what_is_complete(tmp_path: Path) -> None:
    with driven(tmp_path, max_rows=2) as driver:
        pipe(driver, range(4))
    (directory,) = (tmp_path / "_manifest").iterdir()
    first = json.loads((directory / "000000000.json").read_bytes())
    assert first["columns"] == {"name": "string", "n": "int64"} and first["rows"] == 2
    assert first["sink"] == "files" and first["partition"] == 0 and first["topic"] == "in"
    assert len(read_files(str(tmp_path))) == 2
    (directory / "000000001.json").unlink()
    assert len(read_files(str(tmp_path))) == 1
    assert read_files(str(tmp_path), sink="files", application="test") == read_files(str(tmp_path))
    assert read_files(str(tmp_path), sink="other") == read_files(str(tmp_path), application="other") == []
    (directory / "000000000.json").write_bytes(b"{")
    with pytest.raises(SinkError, match=r"manifest _manifest/test~files~00000/000000000\.json is damaged"):
        read_files(str(tmp_path))


@dataclass
class Order:
    n: int
    at: str


def test_rows_are_of_values_of_many_kinds(tmp_path: Path) -> None:
    locations = {name: tmp_path / name for name in ("classes", "only", "keys", "functions")}
    for each in locations.values():
        each.mkdir()
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde="json", value_serde="json")
    stream.map_values(lambda value: Order(value["n"], "x")).to_sink(
        parquet(str(locations["classes"]), columns={"n": "int64", "at": "string"}, max_rows=1), "classes",
        value_serde="pickle",
    )  # fmt: skip
    numbers = stream.map_values(lambda value: value["n"])
    numbers.to_sink(parquet(str(locations["only"]), columns={"n": "double"}, max_rows=1), "only", value_serde="json")
    stream.to_sink(
        parquet(str(locations["keys"]), columns={"a": "int8", "b": "string", "n": "int64"}, key=["a", "b"], max_rows=1),
        "keys", key_serde="json",
    )  # fmt: skip
    stream.to_sink(
        "contrib.parquet", "functions", location=str(locations["functions"]), columns={"twice": "int64"}, max_rows=1,
        row=lambda record: {"twice": record.value["n"] * 2},
    )  # fmt: skip
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", {"a": 1, "b": "x"}, {"n": 5})
    assert {name: rows_in(each) for name, each in locations.items()} == {
        "classes": [{"n": 5, "at": "x"}],
        "only": [{"n": 5.0}],
        "keys": [{"a": 1, "b": "x", "n": 5}],
        "functions": [{"twice": 10}],
    }


def test_a_test_may_take_another_target(tmp_path: Path) -> None:
    target = MemorySink("files")
    with TopologyTestDriver(program(tmp_path / "missing"), sinks={"files": target}, reopen_tasks=True) as driver:
        pipe(driver, range(3))
    assert target.values() == [0, 1, 2]
    target.forget()


def test_a_location_that_is_not_there_is_an_error_by_name(tmp_path: Path) -> None:
    message = (
        r"external sink 'files': Parquet files in '.*/missing': cannot write there: there is no such directory: make"
    )
    with pytest.raises(SinkError, match=message), driven(tmp_path / "missing") as driver:
        pipe(driver, range(1))
    assert not (tmp_path / "missing").exists()


WRONG: dict[str, Any] = {
    "expected either schema= or columns=": {"columns": None},
    "schema: expected a schema of pyarrow, found": {"columns": None, "schema": {"n": "int64"}},
    "columns: expected types by name": {"columns": ["n"]},
    "column 'n': there is no type 'number'": {"columns": {"n": "number"}},
    "column 'n': expected a type of pyarrow": {"columns": {"n": int}},
    "column 'n': type dictionary.* is not supported": {"columns": {"n": pa.dictionary(pa.int8(), pa.string())}},
    "the schema lacks name": {"columns": {"n": "int64"}},
    "key and timestamp name a column twice": {"timestamp": "name"},
    "column 'n' of timestamps is of type int64": {"timestamp": "n"},
    "partition_by names a column of the schema, 'n'": {"partition_by": {"n": "%Y"}},
    "partition_by: expected names and formats": {"partition_by": {"day": "%A"}},
    "max_rows: expected a number from 1 on, found 0": {"max_rows": 0},
    "max_bytes: expected a number from 1 on": {"max_bytes": 1.5},
    "max_age": {"max_age": 5},
    "compression: expected zstd, snappy": {"compression": "best"},
    "row: expected a function": {"row": "n"},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_are_refused_when_it_is_made(tmp_path: Path, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        program(tmp_path, **WRONG[message])


def test_its_name_has_no_password() -> None:
    sink = parquet("s3://key:secret@bucket/folder?region=x", columns={"n": "int64"})
    assert str(sink) == "Parquet files in 's3://bucket/folder'" and "secret" not in repr(sink)


def test_the_application_names_its_store(tmp_path: Path) -> None:
    assert list(Application("app", program(tmp_path)).program.stores) == ["files-staged"]
