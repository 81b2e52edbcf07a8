"""Crash rounds of a sink to Delta tables: `python -m tests.sinks.delta.crash --rounds 10 --seed 1`.

The tables are away for a while, and another program compacts, deletes in and vacuums a table.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from penstock import Application
from penstock.contrib.delta import delta
from penstock.dsl import StreamsBuilder

from ..rounds import Rounds, Row, main
from .programs import counted

_COLUMNS = {"name": "string", "value": "string"}
_OTHERS = "of another program"


def application(directory: Path) -> Application:
    """Return a program that writes what it makes, through a topic, and the input, directly."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to_sink(
        delta(directory / "tables" / "made", columns=_COLUMNS, key="name", partition_by="name"), "made",
        value_serde="str",
    )  # fmt: skip
    builder.stream("direct").to_sink(delta(directory / "tables" / "plain", columns=_COLUMNS, key="name"), "plain")
    return Application(
        "app", builder, data_dir=str(directory / "data"), log="local:log", engine="embedded", processes=2,
        commit_interval="50ms",
    )  # fmt: skip


class DeltaRounds(Rounds):
    """With tables in a directory."""

    MODULE = "tests.sinks.delta.crash"
    OWN_FAULTS = ["tables away", "other programs"]

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self._location = directory / "tables"
        self._location.mkdir()

    def found(self, target: str) -> Counter[Row]:
        found = counted(self._location / target)
        return Counter({(name, value): count for (name, value), count in found.items() if name != _OTHERS})

    def strike(self, fault: str) -> None:
        if fault == "tables away":
            away = self._location.with_name("away")
            self._location.rename(away)
            time.sleep(self.random.choice([0.1, 1.0]))
            # Only a commit that began before may have made directories there.
            shutil.rmtree(self._location, ignore_errors=True)
            away.rename(self._location)
            return
        for _ in range(5):
            self.put(20)
            for table in self.CHANGES:
                _maintain(self._location / table)


def _maintain(table: Path) -> None:
    """Append, compact, delete, write a checkpoint and vacuum, as other programs do."""
    with suppress(CommitFailedError):  # the sink has won
        write_deltalake(table, pa.table({"name": [_OTHERS], "value": ["x"]}), mode="append")
        DeltaTable(table).optimize.compact()
        DeltaTable(table).delete(f"name = '{_OTHERS}'")
        DeltaTable(table).create_checkpoint()
        DeltaTable(table).cleanup_metadata()
        DeltaTable(table).vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)


if __name__ == "__main__":
    main(DeltaRounds, application)
