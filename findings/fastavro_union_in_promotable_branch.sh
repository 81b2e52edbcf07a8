#!/bin/sh
# fastavro reads a long of a union as a double, if the union names double first, although it was written as a long.
#
# fastavro 1.13.1, with a reader's schema that has one more field, and the same union. The writer noted the branch "long"
# in the bytes; fastavro takes the reader's first branch to which it can be promoted, not the one that is equal. Seen:
# 2**53 + 1 comes back as the float 9007199254740992.0 and bytes come back as str, once a field is added elsewhere in the
# record; without a reader's schema, or with the branches in the other order, both come back as they were.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet 'fastavro==1.13.1'
"$directory/venv/bin/python" - <<'PYTHON'
from io import BytesIO

from fastavro import parse_schema, schemaless_reader, schemaless_writer


def there_and_back(branches: list[str], branch: str, value: object, *, is_newer: bool) -> object:
    fields = [{"name": "f", "type": branches}]
    schema = parse_schema({"type": "record", "name": "R", "fields": fields})
    newer = parse_schema({"type": "record", "name": "R", "fields": [*fields, {"name": "n", "type": "int", "default": 0}]})
    file = BytesIO()
    schemaless_writer(file, schema, {"f": (branch, value)})
    file.seek(0)
    found = schemaless_reader(file, schema, newer if is_newer else None)["f"]
    print(branches, "written as", branch, repr(value), "read with a newer schema" if is_newer else "read", repr(found))
    return found


large = 2**53 + 1
assert there_and_back(["double", "long"], "long", large, is_newer=False) == large
assert there_and_back(["long", "double"], "long", large, is_newer=True) == large
assert there_and_back(["double", "long"], "long", large, is_newer=True) == float(2**53)
assert there_and_back(["string", "bytes"], "bytes", b"a", is_newer=False) == b"a"
assert there_and_back(["string", "bytes"], "bytes", b"a", is_newer=True) == "a"
PYTHON
