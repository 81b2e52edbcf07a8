#!/bin/sh
# Values of partition columns of a Delta table are written without an error, and read back as others, or not at all.
#
# deltalake 1.6.6. Texts, whole numbers, bool and dates are right, but: an empty text is null for pyarrow (and in the
# protocol) and empty for deltalake's own engine; the text __HIVE_DEFAULT_PARTITION__ beside a null is null; the bytes
# 0xff are read as six others; decimal -0.05 is committed, and makes the whole table unreadable. A timestamp with a zone is written without
# one, so a reader such as Spark takes it for its own session's.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
"$directory/venv/bin/python" - "$directory" <<'PYTHON'
import sys
from datetime import datetime, timezone
from decimal import Decimal

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake


def write(name, type_, *values):
    place = f"{sys.argv[1]}/{name}"
    rows = pa.table({"c": pa.array(values, type_), "n": range(len(values))})
    write_deltalake(place, rows, partition_by=["c"])
    return place


def read(place):
    found = DeltaTable(place).to_pyarrow_table().to_pylist()
    return [row["c"] for row in sorted(found, key=lambda row: row["n"])]


empty = write("empty", pa.string(), "")
scanned = pa.table(DeltaTable(empty).scan().read_all())["c"].to_pylist()
print("an empty text:", read(empty), "and by scan", scanned)
assert (read(empty), scanned) == ([None], [""])
hive = read(write("hive", pa.string(), "__HIVE_DEFAULT_PARTITION__", None))
print("__HIVE_DEFAULT_PARTITION__ beside null:", hive)
assert hive == [None, None]
bytes_ = read(write("bytes", pa.binary(), b"\xff"))
print("the byte 0xff:", bytes_)
assert bytes_ == [rb"\u00FF"]
for call in (lambda: write("decimal", pa.decimal128(10, 2), Decimal("-0.05")), lambda: read(f"{sys.argv[1]}/decimal")):
    try:
        call()
    except Exception as error:
        print("decimal -0.05:", str(error).splitlines()[0])
    else:
        raise AssertionError("decimal -0.05 could be read")
at = write("at", pa.timestamp("us", "UTC"), datetime(2026, 1, 1, 12, tzinfo=timezone.utc))
(text,) = {each["c"] for each in DeltaTable(at).partitions()}
print("12:00 UTC:", text)
assert text == "2026-01-01 12:00:00.000000"
PYTHON
