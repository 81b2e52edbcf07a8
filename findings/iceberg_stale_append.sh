#!/bin/sh
# A stale Iceberg append is refused by pyiceberg 0.11.1 and committed by 0.12.0.
#
# Two writers load a table; one appends, then the other appends with its older handle. A sink may rely on the refusal to
# fence a predecessor that was frozen and goes on. Seen: 0.11.1 raises CommitFailedException, 0.12.0 logs a retry and
# commits, so the rows are there twice. Since 0.12.0 a sink needs a requirement of its own in the commit.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
for version in 0.11.1 0.12.0; do
    python3 -m venv "$directory/$version"
    "$directory/$version/bin/pip" install --quiet "pyiceberg[sql-sqlite,pyarrow]==$version"
    "$directory/$version/bin/python" - "$directory/$version" $version <<'PYTHON'
import sys

import pyarrow
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

place, version = sys.argv[1:]
catalog = SqlCatalog("catalog", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse")
catalog.create_namespace("shop")
rows = pyarrow.table({"order": [1]})
successor = catalog.create_table("shop.orders", schema=rows.schema)
successor.append(rows)  # a table without a snapshot is a case of its own
frozen = catalog.load_table("shop.orders")
successor = catalog.load_table("shop.orders")
successor.append(rows)
try:
    frozen.append(rows)
except CommitFailedException as error:
    seen = f"refused: {error}"
else:
    seen = "committed"
count = catalog.load_table("shop.orders").scan().to_arrow().num_rows
print(f"pyiceberg {version}: the stale append was {seen}; {count} rows")
assert (seen == "committed", count) == ((False, 2) if version == "0.11.1" else (True, 3))
PYTHON
done
