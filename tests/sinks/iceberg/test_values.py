"""Values and the types of columns: what a table has is equal to what came, or it is refused by name."""

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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import ConfigError, DeadLetter, SinkPlace, SinkPosition, SinkRecord, SinkRefusedError
from penstock.contrib.iceberg import iceberg
from penstock.dsl import StreamsBuilder
from penstock.testing import TopologyTestDriver

from .tables import COLUMNS, counted, found, open_catalog, rows_in, sink

PLACE = SinkPlace("app", "target", "in", 0)
HERE = timezone(timedelta(hours=2))
AT = datetime(2026, 11, 30, 12, 0, 0, 123456)


class Tables:
    """Tables of one catalog, one for each type."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        open_catalog(directory).close()
        self.number = 0

    def stored(self, type_: Any, *values: Any) -> list[Any]:
        """Return values as a column of a new table has them."""
        self.number += 1
        name = f"shop.t{self.number}"
        made = sink(self.directory, name, columns={"c": type_}, key=())
        writer = made.open(PLACE)
        try:
            records = [SinkRecord(None, {"c": value}, 0, (), number) for number, value in enumerate(values)]
            writer.write(records, None, SinkPosition("id", len(values)))
        finally:
            writer.close()
        return [row["c"] for row in rows_in(self.directory, name)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp("values"))


EXACT = [
    ("int64", 5, 5), ("int64", np.int16(5), 5), ("int64", -(2**63), -(2**63)), ("int8", 127, 127),
    ("int32", 2**31 - 1, 2**31 - 1),
    ("double", 3, 3.0), ("double", np.float32(0.5), 0.5), ("double", Decimal("0.5"), 0.5), ("double", -0.0, -0.0),
    ("double", math.inf, math.inf), ("double", 5e-324, 5e-324), ("float", 0.5, 0.5), ("float", -math.inf, -math.inf),
    ("bool", np.bool_(False), False), ("string", "ü\0\U0001f600", "ü\0\U0001f600"), ("string", "", ""),
    ("binary", b"\xff\0", b"\xff\0"), (pa.binary(2), b"\xff\0", b"\xff\0"),
    ("decimal(10, 2)", Decimal("1.20000"), Decimal("1.20")),
    ("decimal(38, 0)", 10**38 - 1, Decimal(10**38 - 1)), ("decimal(10, 2)", 0.1, Decimal("0.10")),
    ("decimal(38, 38)", Decimal("-0." + "9" * 38), Decimal("-0." + "9" * 38)),
    ("date32", date(1, 1, 1), date(1, 1, 1)), ("date32", date(9999, 12, 31), date(9999, 12, 31)),
    ("timestamp", AT.replace(tzinfo=UTC), AT.replace(tzinfo=UTC)),
    ("timestamp", AT.replace(tzinfo=HERE), AT.replace(tzinfo=HERE)), ("timestamp[us]", AT, AT),
    ("timestamp[us]", datetime(1, 1, 1), datetime(1, 1, 1)),
    ("timestamp[us, tz=+00:00]", AT.replace(tzinfo=UTC), AT.replace(tzinfo=UTC)),
    ("timestamp[ms]", AT, AT), ("timestamp[s]", datetime(9999, 12, 31), datetime(9999, 12, 31)),
    ("timestamp[us]", pd.Timestamp(AT), AT), ("time64[us]", time(1, 2, 3, 4), time(1, 2, 3, 4)),
    (pa.list_(pa.int64()), [1, None, 2], [1, None, 2]), (pa.large_list(pa.int16()), (), []),
    (pa.list_(pa.field("item", pa.int64(), nullable=False)), [1], [1]),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1}, {"a": 1, "b": None}),
    (pa.struct([pa.field("a", pa.timestamp("ms"), nullable=False)]), {"a": AT}, {"a": AT}),
    (pa.map_(pa.string(), pa.int64()), {"a": 1, "": None}, [("a", 1), ("", None)]),
    ("string", pd.NA, None), ("timestamp", pd.NaT, None), (pa.list_(pa.string()), None, None),
]  # fmt: skip
REFUSED = [
    ("int64", 1.0), ("int64", True), ("int64", 2**63), ("int32", 2**31), ("double", 2**53 + 1), ("float", 1e300),
    ("bool", 1), ("string", b"x"), ("string", "\ud800"), ("binary", "x"), (pa.binary(2), b"xyz"),
    ("decimal(10, 2)", Decimal("1.234")), ("decimal(4, 2)", 1000), ("decimal(10, 2)", Decimal("NaN")),
    ("date32", AT), ("timestamp", AT), ("timestamp[us]", AT.replace(tzinfo=UTC)),
    ("timestamp[us]", pd.Timestamp(5, unit="ns")), ("time64[us]", time(1, tzinfo=UTC)),
    (pa.list_(pa.field("item", pa.int64(), nullable=False)), [None]), (pa.struct([("a", pa.int64())]), {"b": 2}),
    (pa.struct([pa.field("a", pa.int64(), nullable=False)]), {}), ("int64 not null", None),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "value", "expected"), EXACT, ids=str)
def test_what_fits_is_stored_exactly(tables: Tables, type_: Any, value: Any, expected: Any) -> None:
    first, nothing, second = tables.stored(type_, value, None, value)
    assert (first, nothing, second) == (expected, None, expected)
    if isinstance(expected, float):
        assert math.copysign(1, first) == math.copysign(1, expected)


def test_a_null_list_of_structs_is_refused(tables: Tables) -> None:
    """pyiceberg writes it as an empty list, or map (findings/iceberg_null_list_of_structs.sh)."""
    structs = pa.list_(pa.struct([("a", pa.list_(pa.map_(pa.int32(), pa.date32())))]))
    value: list[Any] = [{"a": [{5: date(1, 1, 1)}]}, None, {"a": None}, {"a": []}]
    assert tables.stored(structs, value, []) == [
        [{"a": [[(5, date(1, 1, 1))]]}, None, {"a": None}, {"a": []}], []
    ]  # fmt: skip
    in_maps = pa.map_(pa.string(), pa.struct([("a", pa.int64())]))
    assert tables.stored(in_maps, {"k": {"a": 1}, "l": None}, {}) == [[("k", {"a": 1}), ("l", None)], []]
    for type_, bad in ((structs, None), (in_maps, None), (pa.struct([("b", structs)]), {"b": None})):
        with pytest.raises(SinkRefusedError, match="column 'c'.*(may not be null|expected no null inside)"):
            tables.stored(type_, bad)


def test_nan_is_kept(tables: Tables) -> None:
    (nan, nothing) = tables.stored("double", math.nan, None)
    assert math.isnan(nan) and nothing is None


@pytest.mark.parametrize(("type_", "value"), REFUSED, ids=str)
def test_what_does_not_fit_is_refused_by_name(tables: Tables, type_: Any, value: Any) -> None:
    with pytest.raises(SinkRefusedError, match="column 'c'") as raised:
        tables.stored(type_, value)
    assert list(raised.value.refusals) == [0]


@pytest.mark.parametrize(
    ("type_", "said"),
    [
        ("uint8", "and Iceberg has no unsigned numbers: write 'int64'"),
        ("uint64", "and Iceberg has no unsigned numbers"),
        ("float16", "and Iceberg has no such numbers: write 'float'"),
        ("decimal256(50, 2)", "and Iceberg has decimals of at most 38 digits"),
        (pa.decimal128(5, -2), "and Iceberg has decimals of at most 38 digits"),
        ("timestamp[ns]", "and tables of Iceberg's format 2 have microseconds"),
        ("timestamp[us, tz=Europe/Berlin]", "and Iceberg has instants only in UTC"),
        ("time32[ms]", "and Iceberg has times in microseconds"),
        ("time64[ns]", "and Iceberg has times in microseconds"),
        ("duration[us]", "and Iceberg has no such type: write 'int64'"),
        (pa.list_(pa.uint8()), "column 'c.element' is of type uint8, and Iceberg has no unsigned numbers"),
        (pa.struct([("a", pa.timestamp("ns"))]), "column 'c.a' is of type"),
        (pa.map_(pa.string(), pa.duration("s")), "column 'c.value' is of type"),
        (pa.uuid(), "is not supported"),
        (pa.null(), "is not supported"),
        (pa.dictionary(pa.int32(), pa.string()), "is not supported"),
    ],
    ids=str,
)
def test_types_that_a_table_cannot_have_are_refused_by_name(type_: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        iceberg("shop.orders", columns={"c": type_})
    assert "'c" in str(raised.value)


TYPES = [
    ("int32", st.integers(-(2**31), 2**31 - 1)), ("int64", st.integers(-(2**63), 2**63 - 1)),
    ("double", st.floats(allow_nan=False)),
    # pyiceberg takes infinity for a number that a float column cannot have, and filters all rows out.
    ("float", st.floats(width=32, allow_nan=False, allow_infinity=False)),
    ("string", st.text()), ("binary", st.binary()), ("bool", st.booleans()), ("date32", st.dates()),
    ("decimal(38, 10)", st.decimals(-(10**27), 10**27, places=10)), ("timestamp[us]", st.datetimes()),
    ("timestamp", st.datetimes(timezones=st.just(UTC), min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29))),
    ("time64[us]", st.times()),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "values"), TYPES, ids=[name for name, _ in TYPES])
def test_values_are_read_as_they_came_and_are_found_by_a_filter(tables: Tables, type_: str, values: Any) -> None:
    """A filter reads only files whose lower and upper bounds fit, so the bounds have to be right, too."""

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(values, min_size=1, max_size=4))
    def check(some: list[Any]) -> None:
        assert tables.stored(type_, *some) == some
        if type_ == "binary":
            return  # pyiceberg's filters of bytes are of their own
        for value in some:
            wanted = value.isoformat() if isinstance(value, (date, datetime, time)) else value
            rows = found(tables.directory, "c", wanted, f"shop.t{tables.number}")
            assert [row["c"] for row in rows] == [each for each in some if each == value]

    check()


# ---------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_handler_decides_about_each_record_that_does_not_fit(tmp_path: Path, is_one_batch: bool) -> None:
    builder = StreamsBuilder()
    target = sink(tmp_path, columns={"n": "int64 not null", "m": "string"}, key=())
    stream = builder.stream("in", value_serde="json").map_values(lambda value: value)
    stream.to_sink(target, "target", value_serde="json")
    bad = [{"n": "x"}, {"m": "no n"}, {"n": 1, "o": 2}, 5, None, {"n": None}, {"n": 1.5}]
    records = [("k", {"n": 0}), *(("k", value) for value in bad), ("k", {"n": 1, "m": "fine"})]
    with TopologyTestDriver(builder, production_handler=DeadLetter("dead")) as driver:
        if is_one_batch:
            driver.pipe_many("in", records)
        else:
            driver.pipe_all("in", records)
        letters = driver.read_values("dead")
    assert [letter if letter is None else json.loads(letter) for letter in letters] == bad
    assert counted(tmp_path) == {(0, None): 1, (1, "fine"): 1}


def test_a_deletion_is_refused_by_name(tmp_path: Path) -> None:
    writer = sink(tmp_path, columns=COLUMNS).open(PLACE)
    with pytest.raises(SinkRefusedError, match="it has no value, and rows are only added"):
        writer.write([SinkRecord("k", None, 0, (), 0)], None, SinkPosition("id", 1))
    writer.close()
