#!/bin/sh
# Delta Lake's application transactions do not make a sink idempotent by themselves.
#
# deltalake 1.6.6. A writer that records Transaction(APP, N) with each append expects, as the protocol's `txn` action
# is for idempotent writers, that N is refused unless it is above the recorded one. Seen: a writer that opens the table
# anew may append version 7 twice, and 5 after 7; `transaction_version` then goes back to 5. Only a handle that is older
# than another commit of the same application is refused, whatever its number. So an exactly-once sink has to read
# `transaction_version`, compare, and write by that same handle.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
"$directory/venv/bin/python" - "$directory/table" <<'PYTHON'
import sys

import pyarrow
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

place = sys.argv[1]


def append(number, table):
    write_deltalake(
        table,
        pyarrow.table({"written_as": [number]}),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("sink", number)]),
    )


append(7, place)
older = DeltaTable(place)
append(7, place)
append(5, place)
rows = sorted(DeltaTable(place).to_pyarrow_table()["written_as"].to_pylist())
version = DeltaTable(place).transaction_version("sink")
print("appended as 7, 7 and 5; the table has", rows, "and the version is", version)
assert rows == [5, 7, 7] and version == 5
try:
    append(8, older)
except CommitFailedError as error:
    print("a handle from before the other commits, with the higher number 8:", error)
else:
    raise AssertionError("a handle from before the other commits was not refused")
PYTHON
