"""Values and the types of columns: what is stored is equal to what came, or it is refused by name."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DeadLetter, ProductionError, SinkRecord, SinkRefusedError, skip
from penstock.contrib.arrow.library import schema_of
from penstock.contrib.arrow.rows import RowMaker, Rows
from penstock.contrib.parquet import parquet
from penstock.dsl import StreamsBuilder
from penstock.testing import TopologyTestDriver

from .reading import counted

HERE = timezone(timedelta(hours=2))
AT = datetime(2026, 11, 30, 12, 0, 0, 123456)


def stored(type_: Any, *values: Any) -> list[Any]:
    """Return values as a column stores them."""
    maker = RowMaker(Rows(schema_of("rows", {"c": type_}), (), None, None, False))
    records = [SinkRecord(None, {"c": value}, 0, (), number) for number, value in enumerate(values)]
    found: list[Any] = maker.batch(records).column(0).to_pylist()
    return found


EXACT = [
    ("int64", 5, 5), ("int64", np.int16(5), 5), ("uint8", 255, 255), ("int64", -(2**63), -(2**63)),
    ("double", 1.5, 1.5), ("double", 3, 3.0), ("double", np.float32(0.5), 0.5), ("double", Decimal("0.5"), 0.5),
    ("double", math.inf, math.inf), ("float", 0.5, 0.5), ("float", math.inf, math.inf),
    ("bool", True, True), ("bool", np.bool_(False), False), ("string", "ü\0", "ü\0"), ("binary", b"\xff", b"\xff"),
    ("binary", bytearray(b"x"), b"x"), ("decimal(10, 2)", Decimal("1.20000"), Decimal("1.20")),
    ("decimal(10, 2)", 3, Decimal("3.00")), ("decimal(10, 2)", 0.1, Decimal("0.10")),
    ("date32", date(2026, 1, 2), date(2026, 1, 2)), ("timestamp", AT.replace(tzinfo=UTC), AT.replace(tzinfo=UTC)),
    ("timestamp", AT.replace(tzinfo=HERE), AT.replace(tzinfo=HERE)), ("timestamp[us]", AT, AT),
    ("timestamp[ms]", AT.replace(microsecond=5000), AT.replace(microsecond=5000)),
    ("timestamp[us]", pd.Timestamp(AT), AT), ("time64[us]", time(1, 2, 3, 4), time(1, 2, 3, 4)),
    ("duration[us]", timedelta(days=1, microseconds=1), timedelta(days=1, microseconds=1)),
    (pa.list_(pa.int64()), [1, None, 2], [1, None, 2]), (pa.list_(pa.int64()), (1, 2), [1, 2]),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1}, {"a": 1, "b": None}),
    (pa.map_(pa.string(), pa.int64()), {"a": 1}, [("a", 1)]),
    (pa.list_(pa.timestamp("us")), [AT], [AT]),
    ("string", pd.NA, None), ("timestamp", pd.NaT, None), ("int64", None, None),
]  # fmt: skip
REFUSED = [
    ("int64", 1.0), ("int64", 1.5), ("int64", True), ("int64", "1"), ("int64", 2**63), ("uint8", -1), ("int8", 300),
    ("double", 2**53 + 1), ("double", "1.5"), ("double", True), ("double", Decimal("0.1")), ("float", 1e300),
    ("bool", 1), ("string", b"x"), ("string", 5), ("string", "\ud800"), ("binary", "x"), ("int64", math.nan),
    ("decimal(10, 2)", Decimal("1.234")), ("decimal(10, 2)", Decimal("NaN")), ("decimal(10, 2)", 0.125),
    ("decimal(4, 2)", 1000), ("decimal(10, 2)", True), ("date32", AT), ("date32", "2026-01-02"),
    ("timestamp", AT), ("timestamp[us]", AT.replace(tzinfo=UTC)), ("timestamp[ms]", AT), ("timestamp[s]", AT),
    ("timestamp", 5), ("timestamp[ns]", datetime(1500, 1, 1)), ("timestamp[us]", pd.Timestamp(5, unit="ns")),
    ("time32[ms]", time(1, 2, 3, 4)), ("time64[us]", time(1, tzinfo=UTC)), ("duration[ms]", timedelta(microseconds=5)),
    ("duration[us]", pd.Timedelta(5, unit="ns")), (pa.list_(pa.int64()), [1, 1.5]), (pa.list_(pa.int64()), "12"),
    (pa.list_(pa.field("item", pa.int64(), nullable=False)), [None]), (pa.binary(2), b"xyz"),
    (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}), (pa.struct([("a", pa.int64())]), {"a": "1"}),
    (pa.map_(pa.string(), pa.int64()), [("a", 1)]), ("int64 not null", None), ("string not null", pd.NA),
    (pa.list_(pa.float32()), [0.5, 1e300]), (pa.map_(pa.string(), pa.float32()), {"a": -1e300}),
    (pa.struct([("a", pa.list_(pa.float16()))]), {"a": [70000.0]}), ("decimal(38, 0)", np.datetime64(5, "ns")),
    ("double", np.timedelta64(5, "s")), ("int64", np.timedelta64(5, "s")), ("double", np.complex64(1 + 2j)),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "value", "expected"), EXACT, ids=str)
def test_what_fits_is_stored_exactly(type_: Any, value: Any, expected: Any) -> None:
    assert stored(type_, value) == [expected]
    assert stored(type_, None, value, value) == [None, expected, expected]


def test_nanoseconds_and_nan_are_kept() -> None:
    (found,) = stored("timestamp[ns]", pd.Timestamp(1_234_567_891))
    assert found == pd.Timestamp(1_234_567_891)
    (nan, nothing) = stored("double", math.nan, None)
    assert math.isnan(nan) and nothing is None


@pytest.mark.parametrize(("type_", "value"), REFUSED, ids=str)
def test_what_does_not_fit_is_refused_by_name(type_: Any, value: Any) -> None:
    with pytest.raises(SinkRefusedError, match="column 'c'") as raised:
        stored(type_, value)
    assert list(raised.value.refusals) == [0]
    good = next((fine for of, fine, _ in EXACT if str(of) == str(type_).removesuffix(" not null")), None)
    if good is not None:  # the same among values that fit
        with pytest.raises(SinkRefusedError) as raised:
            stored(type_, good, value, good, value)
        assert list(raised.value.refusals) == [1, 3]


VALUES = st.one_of(
    st.none(), st.integers(), st.floats(), st.decimals(), st.text(), st.booleans(), st.datetimes(), st.timedeltas(),
    st.dates(), st.binary(),
)  # fmt: skip
TYPES = [
    "int8", "int64", "double", "decimal(20, 3)", "string", "bool", "timestamp[ms]", "timestamp[ns]", "duration[s]",
    "date32", "binary",
]  # fmt: skip


LISTED = st.one_of(st.none(), st.integers(), st.floats(), st.decimals(), st.booleans(), st.dates(), st.timedeltas())


@settings(max_examples=100, deadline=None)
@given(LISTED, st.sampled_from([pa.float16(), pa.float32(), pa.float64(), pa.int8(), pa.decimal128(20, 3)]))
def test_a_value_inside_of_another_is_stored_as_one_alone(value: Any, type_: Any) -> None:
    try:
        (alone,) = stored(type_, value)
    except SinkRefusedError:
        for nested, found in ((pa.list_(type_), [value]), (pa.struct([("a", type_)]), {"a": value})):
            with pytest.raises(SinkRefusedError):
                stored(nested, found)
    else:
        assert repr(stored(pa.list_(type_), [value])) == repr([[alone]])
        assert repr(stored(pa.struct([("a", type_)]), {"a": value})) == repr([{"a": alone}])


@settings(max_examples=200, deadline=None)
@given(st.lists(VALUES, max_size=4), st.sampled_from(TYPES))
def test_no_value_is_stored_as_another_one(values: list[Any], type_: str) -> None:
    alone = []
    for value in values:
        try:
            alone += stored(type_, value)
        except SinkRefusedError:
            alone.append(SinkRefusedError)
            continue
        (found,) = alone[-1:]
        if isinstance(value, float) and type_ == "decimal(20, 3)":
            assert found == Decimal(repr(value))
        else:
            assert found == value or (found != found and value != value), (type_, value, found)
    try:
        together = stored(type_, *values)
    except SinkRefusedError as error:
        assert sorted(error.refusals) == [number for number, each in enumerate(alone) if each is SinkRefusedError]  # noqa: PT017
    else:
        assert repr(together) == repr(alone)


# ---------------------------------------------------------------------------------------- records


def program(location: Path, **options: Any) -> StreamsBuilder:
    builder = StreamsBuilder()
    sink = parquet(str(location), **{"columns": {"n": "int64 not null", "m": "string"}, "max_age": "0s", **options})
    builder.stream("in", value_serde="json").map_values(lambda value: value).to_sink(sink, "files", value_serde="json")
    return builder


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_handler_decides_about_each_record_that_does_not_fit(tmp_path: Path, is_one_batch: bool) -> None:
    bad = [{"n": "x"}, {"m": "no n"}, {"n": 1, "o": 2}, 5, None, {"n": None}, {"n": 1.5}]
    records = [("k", {"n": 0}), *(("k", value) for value in bad), ("k", {"n": 1, "m": "fine"})]
    with TopologyTestDriver(program(tmp_path), production_handler=DeadLetter("dead")) as driver:
        if is_one_batch:
            driver.pipe_many("in", records)
        else:
            driver.pipe_all("in", records)
        letters = driver.read_values("dead")
    assert [letter if letter is None else json.loads(letter) for letter in letters] == bad
    assert counted(tmp_path) == {(0, None): 1, (1, "fine"): 1}


def test_the_default_ends_the_run_and_nothing_is_lost(tmp_path: Path) -> None:
    message = (
        r"node 'files' while writing to Parquet files in .*: column 'n' \(int64\): str 'x' does not fit: expected a"
    )
    with TopologyTestDriver(program(tmp_path)) as driver, pytest.raises(ProductionError, match=message):
        driver.pipe_many("in", [("k", {"n": 0}), ("k", {"n": "x"}), ("k", {"n": 2})])
    assert counted(tmp_path) == {(0, None): 1}  # it was committed before


def test_a_function_that_fails_meets_the_handler(tmp_path: Path) -> None:
    given = program(tmp_path, row=lambda record: {"n": record.value["number"]})
    with TopologyTestDriver(given, production_handler=skip) as driver:
        driver.pipe_many("in", [("k", {"number": 1}), ("k", {}), ("k", {"number": 3})])
    assert counted(tmp_path) == {(1, None): 1, (3, None): 1}
