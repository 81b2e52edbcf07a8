"""Change events of Debezium as values and tables.

The envelopes are those of Debezium's documentation of its connector for PostgreSQL, version 3 (sections "Change event
values", "Transaction metadata" and "Data type mappings"):
https://debezium.io/documentation/reference/stable/connectors/postgresql.html. Those with the schema of columns are what
Kafka Connect's JsonConverter writes with `schemas.enable=true`.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import OutputBatch, PenstockError, SerdeError
from penstock.contrib.debezium import Change, DebeziumSerde, latest, table
from penstock.dsl import StreamsBuilder
from penstock.testing import TopologyTestDriver
from penstock.testing.contracts import SerdeContract

TOPIC = "PostgreSQL_server.public.customers"
COLUMNS = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": False, "field": "first_name"},
    {"type": "string", "optional": False, "field": "last_name"},
    {"type": "string", "optional": False, "field": "email"},
]
ANNE = {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
SOURCE = {
    "version": "3.3.1.Final", "connector": "postgresql", "name": "PostgreSQL_server", "ts_ms": 1559033904863,
    "ts_us": 1559033904863123, "ts_ns": 1559033904863123000, "snapshot": True, "db": "postgres",
    "sequence": '["24023119","24023128"]', "schema": "public", "table": "customers", "txId": 555, "lsn": 24023128,
    "xmin": None,
}  # fmt: skip


def schema_of(columns: list[Any]) -> dict[str, Any]:
    row = {"type": "struct", "fields": columns, "optional": True, "name": f"{TOPIC}.Value"}
    fields = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        {"type": "struct", "fields": [], "optional": False, "field": "source"},
        {"type": "string", "optional": False, "field": "op"},
        {"type": "int64", "optional": True, "field": "ts_ms"},
    ]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{TOPIC}.Envelope"}


def envelope(op: str, before: Any, after: Any, **others: Any) -> dict[str, Any]:
    times = {"ts_ms": 1559033904863, "ts_us": 1559033904863841, "ts_ns": 1559033904863841257}
    return {"before": before, "after": after, "source": SOURCE, "op": op, **times, **others}


def data_of(payload: Any, schema: Any = None) -> bytes:
    return json.dumps(payload if schema is None else {"schema": schema, "payload": payload}).encode()


VALUES = DebeziumSerde().bind(TOPIC, is_key=False)
KEYS = DebeziumSerde().bind(TOPIC, is_key=True)


@pytest.mark.parametrize("schema", [None, schema_of(COLUMNS)], ids=["plain", "with schemas"])
def test_the_documented_events(schema: Any) -> None:
    renamed = {**ANNE, "first_name": "Anne Marie"}
    assert VALUES.deserialize(data_of(envelope("c", None, ANNE), schema)) == Change(
        "c", None, ANNE, SOURCE, 1559033904863
    )
    update = VALUES.deserialize(data_of(envelope("u", {"id": 1}, renamed), schema))
    assert (update.op, update.before, update.after) == ("u", {"id": 1}, renamed)
    deletion = VALUES.deserialize(data_of(envelope("d", {"id": 1}, None), schema))
    assert (deletion.op, deletion.before, deletion.after) == ("d", {"id": 1}, None)
    assert VALUES.deserialize(data_of(envelope("r", None, ANNE), schema)).after == ANNE
    transaction = {"id": "571:53195832", "total_order": "1", "data_collection_order": "1"}
    enriched = VALUES.deserialize(data_of(envelope("c", None, ANNE, transaction=transaction), schema))
    assert enriched.transaction == transaction


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        ({"source": SOURCE, "op": "t", "ts_ms": 1559033904961}, "operation 't' .the table was truncated."),
        ({"source": SOURCE, "op": "m", "message": {"prefix": "foo", "content": "Ymfy"}}, "operation 'm' .a message"),
        ({"source": SOURCE, "op": "x"}, "operation 'x' .unknown."),
        ({"status": "BEGIN", "id": "571:53195829", "ts_ms": 1, "event_count": None}, "so are events of transactions"),
        (ANNE, "expected the envelope of a change .*as of ExtractNewRecordState"),
        ([1], "expected the envelope"),
    ],
)
def test_events_that_are_no_change_of_a_row(payload: Any, what: str) -> None:
    for schema in (None, schema_of(COLUMNS)):
        with pytest.raises(SerdeError, match=what):
            VALUES.deserialize(data_of(payload, schema))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"\0\0\0\0\1avro"])
def test_what_is_no_json(data: bytes) -> None:
    for serde in (VALUES, KEYS):
        with pytest.raises(SerdeError, match="serde 'contrib.debezium'"):
            serde.deserialize(data)


def test_keys() -> None:
    schema = {"type": "struct", "fields": COLUMNS[:1], "optional": False, "name": f"{TOPIC}.Key"}
    assert KEYS.deserialize(data_of({"id": 1}, schema)) == KEYS.deserialize(b'{"id":1}') == 1
    assert KEYS.deserialize(b'{"b":"x","a":2}') == ("x", 2)
    assert KEYS.deserialize(b'"text"') == "text"
    dated = {"type": "struct", "fields": [{"type": "int32", "name": "io.debezium.time.Date", "field": "day"}]}
    assert KEYS.deserialize(data_of({"day": 19782}, dated)) == date(2024, 2, 29)


def unscaled(number: int) -> str:
    return b64encode(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)).decode()


DECIMAL = "org.apache.kafka.connect.data.Decimal"
TYPES: list[tuple[str, dict[str, Any], Any, Any, str | None]] = [
    ("boolean", {"type": "boolean"}, True, True, None),
    ("int64", {"type": "int64"}, 2**63 - 1, 2**63 - 1, None),
    ("double", {"type": "double"}, 0.1, 0.1, None),
    ("whole", {"type": "double"}, 3, 3.0, "double"),
    ("inf", {"type": "double"}, "-Infinity", -math.inf, "double"),
    ("precise", {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}}, unscaled(-15050), Decimal("-150.50"),
     "decimal:2"),
    ("long", {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "3"}}, unscaled(10**40 + 1),
     Decimal("10000000000000000000000000000000000000.001"), "decimal:3"),
    ("zero", {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "0"}}, "AA==", Decimal(0), "decimal:0"),
    ("numeric", {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}}, 1.25, Decimal("1.25"), "decimal:2"),
    ("variable", {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
     {"scale": 4, "value": unscaled(12345)}, Decimal("1.2345"), "variable_decimal"),
    ("date", {"type": "int32", "name": "io.debezium.time.Date"}, -1, date(1969, 12, 31), "date"),
    ("connect_date", {"type": "int32", "name": "org.apache.kafka.connect.data.Date"}, 19782, date(2024, 2, 29), "date"),
    ("time", {"type": "int32", "name": "io.debezium.time.Time"}, 45_000_001, time(12, 30, 0, 1000), "time_ms"),
    ("micro_time", {"type": "int64", "name": "io.debezium.time.MicroTime"}, 1, time(0, 0, 0, 1), "time_us"),
    ("timestamp", {"type": "int64", "name": "io.debezium.time.Timestamp"}, 1529507596945,
     datetime(2018, 6, 20, 15, 13, 16, 945000), "timestamp_ms"),
    ("micro_timestamp", {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, 1529507596945104,
     datetime(2018, 6, 20, 15, 13, 16, 945104), "timestamp_us"),
    ("nano_timestamp", {"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, -1000,
     datetime(1969, 12, 31, 23, 59, 59, 999999), None),
    ("forever", {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, 9223372036825200000, math.inf,
     "timestamp_us"),
    ("never", {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, -9223372036832400000, -math.inf,
     "timestamp_us"),
    ("zoned", {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, "2018-06-20T13:13:16.945104Z",
     datetime(2018, 6, 20, 13, 13, 16, 945104, UTC), "zoned_timestamp"),
    ("zoned_digits", {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, "2018-06-20T13:13:16.945104000Z",
     datetime(2018, 6, 20, 13, 13, 16, 945104, UTC), "zoned_timestamp"),
    ("zoned_forever", {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, "+292278994-08-16T23:00:00Z",
     math.inf, "zoned_timestamp"),
    ("date_forever", {"type": "int32", "name": "io.debezium.time.Date"}, 2146033979, math.inf, "date"),
    ("lasts", {"type": "int64", "name": "io.debezium.time.MicroDuration"}, 86_400_000_001,
     timedelta(days=1, microseconds=1), "duration_us"),
    ("interval", {"type": "string", "name": "io.debezium.time.Interval"}, "P1Y2M3DT4H5M6.78S", "P1Y2M3DT4H5M6.78S",
     None),
    ("json", {"type": "string", "name": "io.debezium.data.Json"}, '{"a": 1}', '{"a": 1}', None),
    ("uuid", {"type": "string", "name": "io.debezium.data.Uuid"}, "00000000-0000-0000-0000-000000000001", UUID(int=1),
     "uuid"),
    ("bytes", {"type": "bytes"}, "/wA=", b"\xff\0", "bytes"),
    ("array", {"type": "array", "items": {"type": "int32", "name": "io.debezium.time.Date"}}, [0, None],
     [date(1970, 1, 1), None], None),
    ("map", {"type": "map", "values": {"type": "string"}}, {"key": "val"}, {"key": "val"}, None),
    ("point", {"type": "struct", "fields": [{"type": "double", "field": "x"}]}, {"x": 1}, {"x": 1.0}, None),
    ("none", {"type": "int32", "name": "io.debezium.time.Date"}, None, None, "date"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "schema", "written", "value", "named"), TYPES, ids=[each[0] for each in TYPES])
def test_types(name: str, schema: dict[str, Any], written: Any, value: Any, named: str | None) -> None:
    data = data_of(envelope("c", None, {"x": written}), schema_of([{**schema, "field": "x"}]))
    read = VALUES.deserialize(data).after["x"]
    assert (read, type(read)) == (value, type(value))
    if named is not None:
        serde = DebeziumSerde({"x": named}).bind(TOPIC, is_key=False)
        plain = serde.deserialize(data_of(envelope("c", None, {"x": written}))).after["x"]
        assert (plain, type(plain)) == (value, type(value))


@pytest.mark.parametrize(
    ("named", "written", "what"),
    [
        ("date", 10**7, "x: .*date value out of range"),
        ("timestamp_us", 10**18, "x: "),
        ("timestamp_ms", "soon", "x: 'soon' is no io.debezium.time.Timestamp: expected an integer"),
        ("zoned_timestamp", "+10000-01-01T00:00:00Z", "x: "),
        ("uuid", "1", "x: .*badly formed"),
        ("bytes", "!", "x: "),
        ("decimal", "much", "x: "),
        ("time_us", 86_400_000_000, "x: .*before 24:00"),
        ("time_ms", 25 * 3_600_000, "x: .*before 24:00"),
        ("time_us", -1, "x: .*from 00:00"),
        ("zoned_timestamp", "2018-06-20T13:13:16.9451044Z", "x: .*no nanoseconds"),
        ("zoned_timestamp", "2018-06-20T13:13:16.945104001+02:00", "x: .*no nanoseconds"),
        ("zoned_timestamp", "2018-06-20T13:13:16", "x: .*with a zone"),
    ],
)
def test_values_that_python_does_not_hold_are_refused(named: str, written: Any, what: str) -> None:
    serde = DebeziumSerde({"x": named}).bind(TOPIC, is_key=False)
    with pytest.raises(SerdeError, match=what):
        serde.deserialize(data_of(envelope("c", None, {"x": written})))


def test_other_forms_of_decimals() -> None:
    serde = DebeziumSerde({"x": "decimal"}).bind(TOPIC, is_key=False)
    for written, value in (("1.50", Decimal("1.50")), (7, Decimal(7)), ("NaN", None)):
        read = serde.deserialize(data_of(envelope("c", None, {"x": written}))).after["x"]
        assert str(read) == ("NaN" if value is None else str(value))
    exact = b'{"op": "c", "source": {}, "after": {"x": 0.10000000000000000001}}'
    assert serde.deserialize(exact).after == {"x": Decimal("0.10000000000000000001")}
    with pytest.raises(SerdeError, match="no type 'money'; there are date, time_ms"):
        DebeziumSerde({"x": "money"})


class TestDebeziumSerde(SerdeContract):
    serde = DebeziumSerde
    values = st.builds(
        Change,
        st.sampled_from("rcud"),
        st.none()
        | st.dictionaries(
            st.text(), st.integers() | st.decimals(-(10**20), 10**20, places=5) | st.dates() | st.binary()
        ),
        st.none()
        | st.dictionaries(
            st.text(), st.integers() | st.text() | st.times().map(lambda each: each.replace(fold=0)) | st.just(math.inf)
        ),
        st.none() | st.dictionaries(st.text(), st.integers()),
        st.none() | st.integers(),
    )
    refused = (object(), 1j)


def customers(columns: Mapping[str, str] | None = None) -> StreamsBuilder:
    builder = StreamsBuilder()
    rows = table(builder, TOPIC, "customers", key_serde="int", columns=columns)
    rows.to_stream().to("out", key_serde="int", value_serde="msgpack")
    return builder


def event(key: Any, value: Any) -> OutputBatch:
    data = None if value is None else data_of(value)
    return OutputBatch(TOPIC, [None if key is None else data_of(key)], [data], [1])


def present(driver: TopologyTestDriver) -> dict[int, Any]:
    """Return the rows of the table."""
    stores = (driver.store("customers", partition) for partition in (0, 1))
    return {key: entry.value for store in stores for key, entry in store.all()}


Operation = tuple[int, bool]
"""A key, and whether it gets a row, else none."""


@given(
    operations=st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=25),
    seen=st.integers(0, 10),
    compacted=st.integers(0, 15),
    again=st.integers(0, 25),
)
@example(operations=[(1, True), (1, False)], seen=1, compacted=2, again=0)
def test_a_table_has_the_rows_of_the_database(
    operations: list[Operation], seen: int, compacted: int, again: int
) -> None:
    """Also if events behind those that it has seen were compacted, and if Debezium sends its last events again."""
    rows: dict[int, Any] = {}
    events: list[tuple[int, Any]] = []
    for number, (key, is_put) in enumerate(operations):
        before = {"id": key} if key in rows else None
        if is_put:
            is_left_out = before and number % 2 and not seen <= len(events) < seen + compacted + 1
            text = "__debezium_unavailable_value" if is_left_out else f"t{number}"
            rows[key] = {"id": key, "n": number, "text": rows[key]["text"] if is_left_out else text}
            op = "c" if before is None else "u"
            events.append((key, envelope(op, before, {"id": key, "n": number, "text": text})))
        elif before:
            del rows[key]
            events += [(key, envelope("d", before, None)), (key, None)]
    end = seen + compacted
    last = {key: index for index, (key, _) in enumerate(events[:end])}
    kept = [each for index, each in enumerate(events) if not seen <= index < end or last[each[0]] == index]
    repeated = kept[max(0, len(kept) - again) :]
    with TopologyTestDriver(customers(), partitions=2) as driver:
        for key, value in kept:
            driver.pipe_raw(event({"id": key}, value))
        assert present(driver) == rows
        if not any("_unavailable_" in json.dumps(value) for _, value in repeated):
            for key, value in repeated:
                driver.pipe_raw(event({"id": key}, value))
            assert present(driver) == rows


def test_a_row_keeps_all_types_in_the_store() -> None:
    written = {"id": 1, "price": unscaled(150), "day": 19782, "at": 1, "lasts": 1, "until": 9223372036825200000}
    columns = {"price": "decimal:2", "day": "date", "at": "time_us", "lasts": "duration_us", "until": "timestamp_us"}
    builder = StreamsBuilder()
    table(builder, TOPIC, "customers", key_serde="int", columns=columns)
    with TopologyTestDriver(builder) as driver:
        driver.pipe_raw(event({"id": 1}, envelope("c", None, written)))
        assert driver.store("customers").get(1).value == {
            "id": 1, "price": Decimal("1.50"), "day": date(2024, 2, 29), "at": time(0, 0, 0, 1),
            "lasts": timedelta(microseconds=1), "until": math.inf,
        }  # fmt: skip


def test_events_that_stop_a_table() -> None:
    unavailable = envelope("u", None, {"id": 1, "text": "__debezium_unavailable_value"})
    for key, value, what in [
        ({"id": 1}, unavailable, "column 'text': its value was not changed.*REPLICA IDENTITY"),
        (None, envelope("c", None, {"n": 1}), "a change without a key"),
        (None, {"source": SOURCE, "op": "t"}, "the table was truncated"),
    ]:
        with TopologyTestDriver(customers()) as driver, pytest.raises(PenstockError, match=what):
            driver.pipe_raw(event(key, value))


DEFAULT = "__debezium_unavailable_value"
IDENTITY = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"  # Java's UUID.nameUUIDFromBytes
PLACEHOLDERS: list[tuple[str, dict[str, Any], Any]] = [
    # As in Debezium's class UnchangedToastedPlaceholder: text, bytes, a map, and a list in the type of its elements.
    ("text", {"type": "string"}, DEFAULT),
    ("bytea", {"type": "bytes"}, b64encode(DEFAULT.encode()).decode()),
    ("hstore", {"type": "map", "values": {"type": "string"}}, {DEFAULT: DEFAULT}),
    ("hstore as json", {"type": "string", "name": "io.debezium.data.Json"}, f'{{"{DEFAULT}":"{DEFAULT}"}}'),
    ("text[]", {"type": "array", "items": {"type": "string"}}, [DEFAULT]),
    ("bytea[]", {"type": "array", "items": {"type": "bytes"}}, [b64encode(DEFAULT.encode()).decode()]),
    ("uuid[]", {"type": "array", "items": {"type": "string", "name": "io.debezium.data.Uuid"}}, [IDENTITY]),
    ("int4[]", {"type": "array", "items": {"type": "int32"}}, list(DEFAULT.encode())),
    ("float8[]", {"type": "array", "items": {"type": "double"}}, list(map(float, DEFAULT.encode()))),
    ("date[]", {"type": "array", "items": {"type": "int32", "name": "io.debezium.time.Date"}}, list(DEFAULT.encode())),
    ("timestamp[]", {"type": "array", "items": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}},
     list(DEFAULT.encode())),
    ("time[]", {"type": "array", "items": {"type": "int64", "name": "io.debezium.time.MicroTime"}},
     list(DEFAULT.encode())),
    ("interval[]", {"type": "array", "items": {"type": "int64", "name": "io.debezium.time.MicroDuration"}},
     list(DEFAULT.encode())),
    ("numeric(9,2)[]", {"type": "array", "items": {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}}},
     [unscaled(each) for each in DEFAULT.encode()]),
    ("numeric[]", {"type": "array", "items": {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}},
     [{"scale": 0, "value": unscaled(each)} for each in DEFAULT.encode()]),
]  # fmt: skip


@pytest.mark.parametrize("with_schema", [False, True])
@pytest.mark.parametrize(
    ("schema", "placeholder"), [each[1:] for each in PLACEHOLDERS], ids=[p[0] for p in PLACEHOLDERS]
)
def test_a_value_that_was_not_changed_is_kept_in_every_type(
    schema: dict[str, Any], placeholder: Any, with_schema: bool
) -> None:
    columns = [COLUMNS[0], {**schema, "field": "x"}]
    after = {"id": 1, "x": placeholder}
    change = VALUES.deserialize(data_of(envelope("u", None, after), schema_of(columns) if with_schema else None))
    assert latest({"id": 1, "x": "before"}, change) == {"id": 1, "x": "before"}
    with pytest.raises(PenstockError, match="column 'x': its value was not changed"):
        latest(None, change)


@given(st.lists(st.integers(-128, 127) | st.floats() | st.text() | st.binary() | st.dates() | st.decimals()))
def test_other_arrays_are_values(array: list[Any]) -> None:
    assert latest(None, Change("u", None, {"x": array})) == {"x": array}
    assert latest(None, Change("u", None, {"x": [*DEFAULT.encode()[:-1], 1]})) is not None


def test_placeholders_in_other_types() -> None:
    row = {"data": b"x", "list": ["a"], "map": {"k": "v"}}
    placeholder = "none there"
    after = {"data": placeholder.encode(), "list": [placeholder], "map": {placeholder: placeholder}, "n": 1}
    assert latest(row, Change("u", None, after), placeholder) == {**row, "n": 1}
