#!/bin/sh
# A record of an Avro union that is read and written again becomes another record.
#
# fastavro 1.13.1, a union of two records with the same fields. The bytes name the branch; the reader returns a plain
# dict without it, and the writer takes the first record of the union that the dict fits. Seen: a withdrawal of 5 is read
# as {"amount": 5} and written as a deposit of 5. With return_record_name=True it is read as a pair of name and dict,
# which the writer takes, too.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet 'fastavro==1.13.1'
"$directory/venv/bin/python" - <<'PYTHON'
from io import BytesIO

from fastavro import parse_schema, schemaless_reader, schemaless_writer


def record(name: str) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": "amount", "type": "long"}]}


union = parse_schema([record("Deposit"), record("Withdrawal")])


def written(value: object) -> bytes:
    file = BytesIO()
    schemaless_writer(file, union, value)
    return file.getvalue()


def read(data: bytes, **options: object) -> object:
    return schemaless_reader(BytesIO(data), union, **options)


withdrawal = written(("Withdrawal", {"amount": 5}))
plain, named = read(withdrawal), read(withdrawal, return_record_name=True)
print("read as", plain, "and written again as", read(written(plain), return_record_name=True))
assert plain == {"amount": 5}
assert read(written(plain), return_record_name=True) == ("Deposit", {"amount": 5})
assert named == ("Withdrawal", {"amount": 5}) and written(named) == withdrawal
PYTHON
