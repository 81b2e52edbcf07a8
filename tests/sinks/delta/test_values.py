"""Values, types and tables: what is stored is read back equal, by deltalake and pyarrow, or it is refused by name."""

from __future__ import annotations

import json
import math
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, TableFeatures, Transaction, write_deltalake
from deltalake.schema import PrimitiveType
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    ConfigError,
    DeadLetter,
    ProductionError,
    SinkError,
    SinkPlace,
    SinkPosition,
    SinkRecord,
    SinkRefusedError,
    skip,
)
from penstock.contrib.delta import delta, set_position
from penstock.contrib.delta.library import Storage
from penstock.dsl import StreamsBuilder
from penstock.testing import TopologyTestDriver

from .programs import counted, rows_in

PLACE = SinkPlace("app", "target", "in", 0)
AT = datetime(2026, 11, 30, 12, 0, 0, 123456)
DEFAULT: Any = {"n": "int64"}


def write(table: Path, values: list[Any], **options: Any) -> None:
    """Write rows, of which the last one has the value of `c`."""
    writer = delta(table, **options).open(PLACE)
    records = [SinkRecord(None, {"n": n, "c": value}, 0, (), n) for n, value in enumerate(values)]
    begin = writer.position
    offset = 0 if begin is None else begin.next_offset
    writer.write(records, begin, SinkPosition("id", offset + len(records)))


def stored(table: Path, type_: Any, *values: Any, **options: Any) -> list[Any]:
    """Return values as readers find them: deltalake, its engine, and pyarrow."""
    write(table, list(values), columns={"n": "int64", "c": type_}, **options)
    handle = DeltaTable(table)
    found = [
        handle.to_pyarrow_table(), pa.table(handle.scan().read_all()),
    ]  # fmt: skip
    if not options:
        found.append(ds.dataset(handle.file_uris(), format="parquet").to_table())
    columns = [[row["c"] for row in sorted(each.to_pylist(), key=lambda row: row["n"])] for each in found]
    assert all(repr(each) == repr(columns[0]) for each in columns[1:]), columns
    return columns[0]


EXACT = [
    ("int8", -128, -128), ("int16", 5, 5), ("int32", 2**31 - 1, 2**31 - 1), ("int64", -(2**63), -(2**63)),
    ("double", 0.1, 0.1), ("double", math.inf, math.inf), ("float", 0.5, 0.5), ("bool", False, False),
    ("string", "ü\0", "ü\0"), ("string", "", ""), (pa.large_string(), "x", "x"), ("binary", b"\xff", b"\xff"),
    ("binary", b"", b""), (pa.binary(2), b"xy", b"xy"), ("decimal(38, 10)", Decimal("-0.05"), Decimal("-0.0500000000")),
    ("decimal(10, 2)", 0.1, Decimal("0.10")), ("date32", date(1, 1, 2), date(1, 1, 2)),
    ("timestamp", AT.replace(tzinfo=UTC), AT.replace(tzinfo=UTC)), ("timestamp[us]", AT, AT),
    ("timestamp[us]", datetime(1500, 1, 1), datetime(1500, 1, 1)),
    ("timestamp[ms]", AT.replace(microsecond=5000), AT.replace(microsecond=5000)),
    ("timestamp[s, tz=Europe/Berlin]", AT.replace(microsecond=0, tzinfo=UTC), AT.replace(microsecond=0, tzinfo=UTC)),
    (pa.list_(pa.int64()), [1, None], [1, None]), (pa.large_list(pa.large_string()), ["a"], ["a"]),
    (pa.struct([("a", pa.int64()), ("b", pa.timestamp("ms"))]), {"a": 1}, {"a": 1, "b": None}),
    (pa.map_(pa.string(), pa.list_(pa.int8())), {"a": [1]}, [("a", [1])]),
    (pa.list_(pa.field("item", pa.int64(), nullable=False)), [1], [1]),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "value", "expected"), EXACT, ids=str)
def test_what_fits_is_stored_exactly(tmp_path: Path, type_: Any, value: Any, expected: Any) -> None:
    assert stored(tmp_path / "t", type_, value, None, value) == [expected, None, expected]
    assert stored(tmp_path / "t", type_, value)[-1:] == [expected]  # the table is there now


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("string", ["a/b", "ü", "a=b", "%20", " ", "null", "\0", "a\nb", "..", None]),
        ("int64", [-5, 2**62, None]), ("bool", [True, False]), ("date32", [date(1, 1, 2), date(9999, 12, 31), None]),
    ],
)  # fmt: skip
def test_values_of_partition_columns(tmp_path: Path, type_: str, values: list[Any]) -> None:
    assert stored(tmp_path / "t", type_, *values, partition_by="c") == values
    assert DeltaTable(tmp_path / "t").metadata().partition_columns == ["c"]


@pytest.mark.parametrize(
    ("value", "said"),
    [("", "an empty text"), ("ü" * 50, "is too long"), ("__HIVE_DEFAULT_PARTITION__", "is the directory of null")],
)
def test_texts_that_are_no_directories_are_refused(tmp_path: Path, value: str, said: str) -> None:
    with pytest.raises(SinkRefusedError, match=f"column 'c': .*{said}"):
        stored(tmp_path / "t", "string", "a", value, partition_by="c")
    assert rows_in(tmp_path / "t") == []


@pytest.mark.parametrize(
    "type_",
    ["uint8", "uint64", "timestamp[ns]", pa.timestamp("ns", "UTC"), "float16", "duration[us]", "time64[us]",
     pa.decimal256(50, 2), pa.decimal128(5, -2), pa.uuid(), pa.struct([]), pa.list_(pa.uint8()), "null",
     pa.struct([("a", pa.timestamp("ns"))]), pa.map_(pa.string(), pa.duration("s"))],
    ids=str,
)  # fmt: skip
def test_types_that_a_table_does_not_keep_are_refused(tmp_path: Path, type_: Any) -> None:
    with pytest.raises(ConfigError, match="column 'c.*': "):
        delta(tmp_path / "t", columns={"c": type_})


VALUES = st.one_of(
    st.none(), st.integers(), st.floats(), st.decimals(), st.text(), st.booleans(), st.datetimes(), st.dates(),
    st.binary(),
)  # fmt: skip
TYPES = [
    "int8",
    "int64",
    "double",
    "decimal(20, 3)",
    "string",
    "bool",
    "timestamp[ms]",
    "timestamp",
    "date32",
    "binary",
]


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, max_size=4), st.sampled_from(TYPES), st.booleans())
def test_no_value_is_stored_as_another_one(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], type_: str, is_partition: bool
) -> None:
    table = tmp_path_factory.mktemp("values") / "t"
    options = {"partition_by": "c"} if is_partition and type_ in ("int8", "int64", "string", "bool", "date32") else {}
    fine = []
    for value in values:
        try:
            write(table, [value], columns={"n": "int64", "c": type_}, **options)
        except SinkRefusedError:
            continue
        fine.append(value)
    found = [row["c"] for row in rows_in(table)]
    assert len(found) == len(fine)
    for value in fine:
        if isinstance(value, float) and type_ == "decimal(20, 3)":
            value = Decimal(repr(value))
        found.remove(next(each for each in found if each == value or (each != each and value != value)))


def test_nan_is_kept(tmp_path: Path) -> None:
    found = stored(tmp_path / "t", "double", math.nan, None)
    assert math.isnan(found[0]) and found[1] is None


# ---------------------------------------------------------------------------------------- the table


def made(table: Path, schema: pa.Schema, **options: Any) -> DeltaTable:
    return DeltaTable.create(table, schema, **options)


NULLABLE = pa.schema([("n", pa.int64()), ("c", pa.string())])
MISFITS: dict[str, Any] = {
    "it has no column c, but n": (pa.schema([("n", pa.int64())]), {}),
    "column 'c' is of type int8, and columns= says string": (pa.schema([("n", pa.int64()), ("c", pa.int8())]), {}),
    "column 'c' or a part of it may not be null": (
        pa.schema([("n", pa.int64()), pa.field("c", pa.string(), nullable=False)]), {},
    ),
    "column m may not be null, and is not written": (NULLABLE.append(pa.field("m", pa.int8(), nullable=False)), {}),
    "it is partitioned by c, and partition_by= says nothing": (NULLABLE, {"partition_by": ["c"]}),
    "the table sets delta.setTransactionRetentionDuration": (
        NULLABLE, {"configuration": {"delta.setTransactionRetentionDuration": "interval 1 days"}},
    ),
    "the table sets delta.columnMapping.mode to 'name'": (
        NULLABLE, {"configuration": {"delta.columnMapping.mode": "name"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", MISFITS)
def test_a_table_that_does_not_fit_is_refused_at_the_start(tmp_path: Path, said: str) -> None:
    schema, options = MISFITS[said]
    made(tmp_path / "t", schema, **options)
    with pytest.raises(SinkError, match=said):
        write(tmp_path / "t", ["x"], columns={"n": "int64", "c": "string"})
    assert DeltaTable(tmp_path / "t").version() == 0


def test_nested_columns_that_do_not_fit(tmp_path: Path) -> None:
    item = pa.field("item", pa.int8(), nullable=False)
    made(tmp_path / "t", pa.schema([("n", pa.int64()), ("c", pa.list_(pa.struct([("a", pa.list_(item))])))]))
    for inner in (pa.struct([("a", pa.list_(pa.int8()))]), pa.struct([("b", pa.list_(item))]), pa.int8()):
        with pytest.raises(SinkError, match="column 'c'"):
            write(tmp_path / "t", [None], columns={"n": "int64", "c": pa.list_(inner)})
    write(tmp_path / "t", [[{"a": [1]}]], columns={"n": "int64", "c": pa.list_(pa.struct([("a", pa.list_(item))]))})
    assert rows_in(tmp_path / "t") == [{"n": 0, "c": [{"a": [1]}]}]


def test_a_table_may_have_other_columns_in_another_order(tmp_path: Path) -> None:
    made(tmp_path / "t", pa.schema([("more", pa.int8()), ("c", pa.string()), ("n", pa.int64())]))
    write(tmp_path / "t", ["x"], columns={"n": "int64 not null", "c": "string"})
    assert rows_in(tmp_path / "t") == [{"more": None, "c": "x", "n": 0}]


def test_a_generated_column_has_to_be_written(tmp_path: Path) -> None:
    number, text = PrimitiveType("long"), PrimitiveType("string")
    generated = Field("g", number, metadata={"delta.generationExpression": "n"})
    fields = [Field("n", number), Field("c", text), generated]
    DeltaTable.create(tmp_path / "t", Schema(fields))
    with pytest.raises(SinkError, match="column g has delta.generationExpression, which a writer has to fill"):
        write(tmp_path / "t", ["x"], columns={"n": "int64", "c": "string"})


def test_a_feature_that_the_library_does_not_write(tmp_path: Path) -> None:
    table = made(tmp_path / "t", NULLABLE)
    table.alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(SinkError, match="the table has a feature that deltalake cannot write"):
        write(tmp_path / "t", ["x"], columns={"n": "int64", "c": "string"})


def test_a_column_that_goes_away_while_it_runs(tmp_path: Path) -> None:
    writer = delta(tmp_path / "t", columns={"c": "string"}).open(PLACE)
    writer.write([SinkRecord(None, "x", 0, (), 0)], None, SinkPosition("id", 1))
    write_deltalake(tmp_path / "t", pa.table({"other": ["x"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SinkError, match="it has no column c|was replaced"):
        writer.write([SinkRecord(None, "x", 0, (), 1)], SinkPosition("id", 1), SinkPosition("id", 2))


@pytest.mark.parametrize("topic_id", ["", "a", "seven77", "eight888", "Qk9vbHVfU2VtUGxlLTEyMw", "ü" * 40])
def test_any_topics_id_is_kept(tmp_path: Path, topic_id: str) -> None:
    sink = delta(tmp_path / "t", columns={"c": "string"})
    position = SinkPosition(topic_id, 1)
    sink.open(PLACE).write([SinkRecord(None, "x", 0, (), 0)], None, position)
    handle = DeltaTable(tmp_path / "t")
    handle.create_checkpoint()
    (tmp_path / "t" / "_delta_log" / f"{0:020}.json").unlink()
    assert sink.open(PLACE).position == position
    assert set_position(str(tmp_path / "t"), PLACE, SinkPosition("other", 5)) == position
    assert sink.open(PLACE).position == SinkPosition("other", 5)


def test_a_transaction_of_another_program_is_no_position(tmp_path: Path) -> None:
    made(tmp_path / "t", NULLABLE)
    moves = CommitProperties(app_transactions=[Transaction("penstock/app/target/in/0", 5)])
    write_deltalake(tmp_path / "t", pa.table({"n": [1], "c": ["x"]}), mode="append", commit_properties=moves)
    with pytest.raises(SinkError, match="has no topic's id: another program has written it"):
        delta(tmp_path / "t", columns={"c": "string"}).open(PLACE)


# ---------------------------------------------------------------------------------------- options

WRONG: dict[str, Any] = {
    "expected either schema= or columns=": {"columns": None},
    "column 'a b': a name in a Delta table has none of": {"columns": {"a b": "int64"}},
    "columns a, A: names in a Delta table differ": {"columns": {"a": "int64", "A": "int64"}},
    "partition_by names p, and the columns are n": {"partition_by": ["p"]},
    "partition_by: expected some of the columns": {"partition_by": "n"},
    "column 'd' is of type double, expected string": {"columns": {"n": "int64", "d": "double"}, "partition_by": "d"},
    "table_uri: expected a directory or a URL": {"table_uri": ""},
    "storage_options: expected texts by name": {"storage_options": {"timeout": 5}},
    "storage_options: AWS_S3_ALLOW_UNSAFE_RENAME lets writers replace": {
        "storage_options": {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"},
    },
    "storage_options: conditional_put lets": {"storage_options": {"conditional_put": "disabled"}},
    "row: expected a function": {"row": "n"},
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_are_refused_when_it_is_made(tmp_path: Path, message: str) -> None:
    options = {"table_uri": tmp_path / "t", "columns": DEFAULT, **WRONG[message]}
    with pytest.raises(ConfigError, match=message):
        delta(options.pop("table_uri"), **options)
    assert os.listdir(tmp_path) == []


def test_an_unsafe_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "1")
    with pytest.raises(SinkError, match="the variable AWS_S3_ALLOW_UNSAFE_RENAME lets"):
        delta(tmp_path / "t", columns=DEFAULT).open(PLACE)


def test_secrets_are_in_no_text() -> None:
    options = {
        "AWS_SECRET_ACCESS_KEY": "hidden-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "hidden-2", "AWS_REGION": "x", "max_retries": "0",
    }  # fmt: skip
    sink = delta("s3://hidden-3:hidden-4@bucket/table?sig=hidden-5", columns=DEFAULT, storage_options=options)
    with pytest.raises(SinkError) as raised:
        sink.open(PLACE)
    assert str(sink) == "Delta table 's3://bucket/table'"
    assert "hidden" not in f"{sink!r} {sink} {raised.value}"
    storage = Storage("s3://b/t", options, "s3://b/t")
    assert storage.text_of(OSError("GET http://x/y?sig=hidden-5 with hidden-1 of hidden-2: \x1b[31m no")) == (
        "GET http://x/y?*** with *** of ***: no"
    )


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    write(f"file://{tmp_path}/a%20b", ["x"], columns={"n": "int64", "c": "string"})  # type: ignore[arg-type]
    assert rows_in(tmp_path / "a b") == [{"n": 0, "c": "x"}]


# ---------------------------------------------------------------------------------------- records


def program(table: Path, **options: Any) -> StreamsBuilder:
    builder = StreamsBuilder()
    sink = delta(table, **{"columns": {"n": "int64 not null", "m": "string"}, **options})
    builder.stream("in", value_serde="json").map_values(lambda value: value).to_sink(sink, "rows", value_serde="json")
    return builder


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_handler_decides_about_each_record_that_does_not_fit(tmp_path: Path, is_one_batch: bool) -> None:
    bad = [{"n": "x"}, {"m": "no n"}, {"n": 1, "o": 2}, 5, None, {"n": None}, {"n": 1.5}]
    records = [("k", {"n": 0}), *(("k", value) for value in bad), ("k", {"n": 1, "m": "fine"})]
    with TopologyTestDriver(program(tmp_path / "t"), production_handler=DeadLetter("dead")) as driver:
        if is_one_batch:
            driver.pipe_many("in", records)
        else:
            driver.pipe_all("in", records)
        letters = driver.read_values("dead")
    assert [letter if letter is None else json.loads(letter) for letter in letters] == bad
    assert counted(tmp_path / "t") == {(0, None): 1, (1, "fine"): 1}


def test_a_constraint_of_the_table_refuses_a_record(tmp_path: Path) -> None:
    table = made(tmp_path / "t", pa.schema([pa.field("n", pa.int64(), nullable=False), ("m", pa.string())]))
    table.alter.add_constraint({"positive": "n > 0"})
    with TopologyTestDriver(program(tmp_path / "t"), production_handler=skip) as driver:
        driver.pipe_many("in", [("k", {"n": n}) for n in (1, 2, -1, 3, 0, 4)])
    assert counted(tmp_path / "t") == {(n, None): 1 for n in (1, 2, 3, 4)}


def test_the_default_ends_the_run_and_nothing_is_lost(tmp_path: Path) -> None:
    message = r"node 'rows' while writing to Delta table .*: column 'n' \(int64\): str 'x' does not fit: expected a"
    with TopologyTestDriver(program(tmp_path / "t")) as driver, pytest.raises(ProductionError, match=message):
        driver.pipe_many("in", [("k", {"n": 0}), ("k", {"n": "x"}), ("k", {"n": 2})])
    assert counted(tmp_path / "t") == {(0, None): 1}


def test_keys_timestamps_and_rows(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    sink = delta(
        tmp_path / "t", columns={"a": "string", "b": "int64", "at": "timestamp", "day": "date32"}, key=("a", "b"),
        timestamp="at", partition_by="day",
        row=lambda record: {"day": pd.Timestamp(record.timestamp, unit="ms").date()},
    )  # fmt: skip
    builder.stream("in").map(lambda key, value: ((key, 5), value), with_key=True).to_sink(
        sink, "rows", key_serde="msgpack"
    )
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", "k", "v", timestamp=86_400_000)
    (row,) = rows_in(tmp_path / "t")
    assert row == {"a": "k", "b": 5, "at": datetime(1970, 1, 2, tzinfo=UTC), "day": date(1970, 1, 2)}
    assert os.listdir(tmp_path / "t" / "day=1970-01-02")
