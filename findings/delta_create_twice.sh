#!/bin/sh
# Two processes that create a Delta table at a time both succeed, and the second one replaces the first one's table.
#
# deltalake 1.6.6. `DeltaTable.create` with its default mode "error" is expected to raise in all but one of several
# callers. It looks for a table first; but if another create commits between, the commit of version 0 is retried as
# version 1, with another metadata id: rows and properties of the first one's schema are then read by the second one's.
# With CommitProperties(max_commit_retries=0) one caller makes the table, and the others raise.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
"$directory/venv/bin/python" - "$directory" <<'PYTHON'
import sys
from concurrent.futures import ThreadPoolExecutor

import pyarrow
from deltalake import CommitProperties, DeltaTable

SCHEMA = pyarrow.schema([("n", pyarrow.int64())])


def creators(place, **options):
    def create(_):
        try:
            DeltaTable.create(place, SCHEMA, **options)
        except Exception:
            return 0
        return 1

    with ThreadPoolExecutor(8) as threads:
        return sum(threads.map(create, range(8)))


plain = [creators(f"{sys.argv[1]}/plain{number}") for number in range(50)]
without = [
    creators(f"{sys.argv[1]}/without{number}", commit_properties=CommitProperties(max_commit_retries=0))
    for number in range(50)
]
print("most of 8 callers that created one table:", max(plain), "and without retries of the commit:", max(without))
assert max(plain) > 1 and max(without) == 1
PYTHON
