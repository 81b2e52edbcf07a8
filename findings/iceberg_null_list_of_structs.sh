#!/bin/sh
# pyiceberg 0.12.0 writes a null list of structs, and a null map to structs, as an empty one.
#
# The column may be null, and pyarrow.parquet keeps the null by itself. On the way to the data file pyiceberg builds
# lists anew whose elements are structs, from offsets and values, without the validity. Lists of numbers keep their
# nulls. So whoever appends rows with an absent list cannot tell it from an empty one later, in any reader.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet "pyiceberg[sql-sqlite,pyarrow]==0.12.0" pyarrow==26.0.1
"$directory/venv/bin/python" - "$directory" <<'PYTHON'
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
from pyiceberg.catalog.sql import SqlCatalog

place = Path(sys.argv[1])
catalog = SqlCatalog("catalog", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse")
catalog.create_namespace("shop")
struct = pyarrow.struct([("item", pyarrow.string())])
rows = pyarrow.table(
    {
        "structs": pyarrow.array([None, [], [None]], pyarrow.list_(struct)),
        "map": pyarrow.array([None, [], [("a", None)]], pyarrow.map_(pyarrow.string(), struct)),
        "numbers": pyarrow.array([None, [], [None]], pyarrow.list_(pyarrow.int64())),
    }
)
catalog.create_table("shop.orders", schema=rows.schema).append(rows)
(file,) = (place / "warehouse").rglob("*.parquet")
on_disk = pyarrow.parquet.ParquetFile(file).read()
seen = {name: on_disk[name].to_pylist() for name in rows.column_names}
print("appended null, empty and a null inside; the data file has", seen)
assert seen == {"structs": [[], [], [None]], "map": [[], [], [("a", None)]], "numbers": [None, [], [None]]}
PYTHON
