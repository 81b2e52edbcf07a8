"""Crash rounds of a sink to Parquet files: `python -m tests.sinks.parquet.crash --rounds 10 --seed 1`.

The location is away for a while. All data files in the location have each record once, named in a manifest or not.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock import Application
from penstock.contrib.parquet import parquet
from penstock.dsl import StreamsBuilder

from ..rounds import Rounds, Row, main
from .reading import counted

_COLUMNS = {"name": "string", "value": "string"}


def application(directory: Path) -> Application:
    """Return a program that writes what it makes, through a topic, and the input, at once."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to_sink(
        parquet(
            str(directory / "made"), columns=_COLUMNS, key="name", max_rows=100, max_age="200ms",
            partition_by={"second": "%S"},
        ),
        "made", value_serde="str",
    )  # fmt: skip
    builder.stream("direct").to_sink(
        parquet(str(directory / "plain"), columns=_COLUMNS, key="name", max_age="0s"), "plain"
    )
    return Application(
        "app", builder, data_dir=str(directory / "data"), log="local:log", engine="embedded", processes=2,
        commit_interval="20ms",
    )  # fmt: skip


class ParquetRounds(Rounds):
    """With locations that are directories."""

    MODULE = "tests.sinks.parquet.crash"
    OWN_FAULTS = ["location away"]

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self._locations = [directory / name for name in self.CHANGES]
        for each in self._locations:
            each.mkdir()

    def found(self, target: str) -> Counter[Row]:
        return _all_rows(self.directory / target)

    def check(self) -> bool:
        """Return whether manifests name all rows."""
        return all(counted(each) == _all_rows(each) for each in self._locations)

    def written(self, target: str) -> int:
        return counted(self.directory / target).total()

    def strike(self, fault: str) -> None:
        for each in self._locations:
            each.rename(each.with_suffix(".away"))
        time.sleep(self.random.choice([0.1, 1.0]))
        for each in self._locations:
            each.with_suffix(".away").rename(each)


def _all_rows(location: Path) -> Counter[tuple[Any, ...]]:
    """Return the rows of all data files that have their names, as a reader of directories finds them."""
    files = [each for each in location.rglob("*.parquet") if "_temporary" not in each.parts]
    return Counter(tuple(row.values()) for file in files for row in pq.ParquetFile(file).read().to_pylist())


if __name__ == "__main__":
    main(ParquetRounds, application)
