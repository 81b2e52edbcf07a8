#!/bin/sh
# pyiceberg 0.12.0: an append whose commit is retried fails if snapshots are expired meanwhile, although it needs none.
#
# A writer loads a table and appends; before its commit another one appends and expires old snapshots. The retry, which
# 0.12 has for just this, looks for the snapshot from which the append began, and raises ValidationException instead of
# CommitFailedException. An append conflicts with nothing, and a second call succeeds. So a service that appends beside
# a job that expires snapshots has to try again itself, also after ValidationException.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet "pyiceberg[sql-sqlite,pyarrow]==0.12.0" pyarrow==26.0.1
"$directory/venv/bin/python" - "$directory" <<'PYTHON'
import sys
from datetime import datetime, timedelta

import pyarrow
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ValidationException

place = sys.argv[1]
catalog = SqlCatalog("catalog", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse")
catalog.create_namespace("shop")
rows = pyarrow.table({"order": [1]})
catalog.create_table("shop.orders", schema=rows.schema).append(rows)
slow, other = catalog.load_table("shop.orders"), catalog.load_table("shop.orders")
other.append(rows)
other.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(seconds=1)).commit()
try:
    slow.append(rows)
except ValidationException as error:
    print("the append beside an expiry:", error)
else:
    raise AssertionError("the append was committed")
slow.append(rows)
assert catalog.load_table("shop.orders").scan().to_arrow().num_rows == 3
print("a second call committed")
PYTHON
