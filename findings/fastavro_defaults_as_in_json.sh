#!/bin/sh
# A new field with a default of bytes, a date or a decimal gets text or a number from fastavro, one object for all rows.
#
# fastavro 1.13.1, of a row that was written before the field was added. The reader's schema gives the default as JSON has
# it: bytes as text of one letter a byte, a date as days since 1970. A field that was written comes back as bytes and as
# a date. Seen: the default comes back as the str and the int of the schema, and a default list is one list for all
# rows, so that a program that appends to it changes the next row's.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet 'fastavro==1.13.1'
"$directory/venv/bin/python" - <<'PYTHON'
from datetime import date
from io import BytesIO

from fastavro import parse_schema, schemaless_reader, schemaless_writer

day = {"type": "int", "logicalType": "date"}
before = parse_schema({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
new = [
    {"name": "n", "type": "int"},
    {"name": "raw", "type": "bytes", "default": "\u00ff"},
    {"name": "day", "type": day, "default": 19782},
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
]
after = parse_schema({"type": "record", "name": "R", "fields": new})


def read(schema: object, row: dict[str, object]) -> dict[str, object]:
    file = BytesIO()
    schemaless_writer(file, schema, row)
    file.seek(0)
    return schemaless_reader(file, schema, after)


written = read(after, {"n": 1, "raw": b"\xff", "day": date(2024, 2, 29), "tags": []})
first = read(before, {"n": 1})
print("written:", written)
print("by default:", first)
assert (written["raw"], written["day"]) == (b"\xff", date(2024, 2, 29))
assert (first["raw"], first["day"]) == ("\xff", 19782)
first["tags"].append("mine")
second = read(before, {"n": 2})
print("the next row by default:", second)
assert second["tags"] == ["mine"]
PYTHON
