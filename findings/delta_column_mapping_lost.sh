#!/bin/sh
# A Delta table with column mapping is written without an error by deltalake, and each value is read back as null.
#
# deltalake 1.6.6. A library that does not support a table's feature is expected to refuse the write, as it does for row
# tracking or identity columns. Seen: with delta.columnMapping.mode = 'name' as a property at the creation, the append
# succeeds, and the rows are there, with nulls alone.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
"$directory/venv/bin/python" - "$directory/table" <<'PYTHON'
import sys

import pyarrow
from deltalake import DeltaTable, write_deltalake

rows = pyarrow.table({"n": [1, 2]})
DeltaTable.create(sys.argv[1], rows.schema, configuration={"delta.columnMapping.mode": "name"})
write_deltalake(sys.argv[1], rows, mode="append")
found = DeltaTable(sys.argv[1]).to_pyarrow_table()["n"].to_pylist()
print("written: [1, 2], read:", found)
assert found == [None, None]
PYTHON
