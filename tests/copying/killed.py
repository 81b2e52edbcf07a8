"""A copy in a process of its own, for tests to kill: `python -m tests.copying.killed LOG TOPIC KIND PLACE`."""

from __future__ import annotations

import sys
from typing import Any

from penstock.copying import CopySummary, JsonLines, ParquetFiles, PostgresRows, copy


def main(log: str, topic: str, kind: str, place: str) -> None:
    """Copy with small transactions; print the rows after each commit."""
    sources: dict[str, Any] = {"lines": JsonLines, "parquet": ParquetFiles}
    source = sources[kind](place) if kind in sources else PostgresRows(place, "orders", column="n")

    def say(summary: CopySummary, reason: str) -> None:
        print(summary.total, flush=True)

    copy(source, topic, log=log, name=topic, key="id", key_serde="int", batch_rows=10, on_progress=say)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
