"""What the tests read from a location: the rows that manifests name, and all files with their content."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock.contrib.parquet import read_files


def rows_in(location: Path) -> list[dict[str, Any]]:
    """Return the rows of the data files that manifests name."""
    return [row for file in read_files(str(location)) for row in pq.ParquetFile(file).read().to_pylist()]


def counted(location: Path) -> Counter[tuple[Any, ...]]:
    """Return how often each row is there."""
    return Counter(tuple(row.values()) for row in rows_in(location))


def content(location: Path) -> dict[str, bytes]:
    """Return the bytes of all files by their path in the location."""
    return {
        str(path.relative_to(location)): path.read_bytes() for path in sorted(location.rglob("*")) if path.is_file()
    }
