#!/bin/sh
# A pyarrow ParquetWriter that an exception leaves closes a valid file with fewer rows.
#
# pyarrow 26.0.1. `with ParquetWriter(...)` around a loop over a source looks as if a failure of the source left no
# readable file, since Parquet's footer is written last. Seen: the end of the block writes the footer also after an
# exception, so readers of the directory find a valid file that lacks the rest. Write under another name, and rename.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet pyarrow==26.0.1
"$directory/venv/bin/python" - "$directory/rows.parquet" <<'PYTHON'
import sys

import pyarrow
from pyarrow import parquet

file = sys.argv[1]


def source():
    yield pyarrow.record_batch({"number": [1, 2]})
    raise ConnectionError("the source failed after 2 of 4 rows")


try:
    with parquet.ParquetWriter(file, pyarrow.schema([("number", pyarrow.int64())])) as writer:
        for batch in source():
            writer.write_batch(batch)
except ConnectionError as error:
    print(error)
rows = parquet.read_table(file)["number"].to_pylist()
print("the file is valid and has", rows)
assert rows == [1, 2]
PYTHON
