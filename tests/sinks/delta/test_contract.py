"""SinkContract over Delta tables, and wrong sinks that it has to find."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock import Sink, SinkPlace, SinkPosition, SinkRecord
from penstock.contrib.delta import delta
from penstock.contrib.delta.local import sync_commit
from penstock.testing.contracts import SinkContract

from .programs import rows_in

COLUMNS = {"name": "string", "n": "int64", "part": "int32"}


def _row(record: SinkRecord) -> dict[str, Any]:
    return {"n": record.value, "part": record.offset % 3}


class TestDelta(SinkContract):
    refused_value = "no number"
    options: Any = {}
    number = itertools.count()

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def make_sink(self) -> Sink:
        return self.sink_of(self.directory / str(next(self.number)))

    def sink_of(self, table: Any, **options: Any) -> Sink:
        made = delta(str(table), **{"columns": COLUMNS, "key": "name", "row": _row, **self.options, **options})
        made.at = table  # type: ignore[attr-defined]
        return made

    def content(self, sink: Any) -> Iterable[tuple[Any, Any]]:
        return [(row["name"], row["n"]) for row in rows_in(sink.at)]

    def test_a_killed_process_leaves_all_or_nothing(self) -> None:
        """The library does not run in a process that was forked, so each one is started."""
        never = 1_000_000
        for number in (*self._steps()[::6], never):
            sink: Any = self.make_sink()
            self._write(sink, self._records(0, 3), None, SinkPosition("an id", 3))
            command = [sys.executable, "-m", __name__, str(sink.at), str(number), type(self).__name__]
            killed = subprocess.run(command, check=False)
            assert killed.returncode == (-signal.SIGKILL if number < never else 0)
            self._expect_all_or_nothing(sink, f"killed before step {number}")
        assert len(rows_in(sink.at)) == 7

    def broken_sinks(self) -> Iterable[Sink]:
        yield self.sink_of(self.directory / "no" / "parent")
        (self.directory / "file").write_bytes(b"")
        yield self.sink_of(self.directory / "file")
        yield self.sink_of("nothing://known/table")
        self.sink_of(self.directory / "other").open(SinkPlace("a", "b", "c", 0))
        yield self.sink_of(self.directory / "other", columns={**COLUMNS, "n": "int32"})
        yield self.sink_of(self.directory / "other", columns={**COLUMNS, "more": "int32"})
        yield self.sink_of(self.directory / "other", partition_by=["n"])
        (self.directory / "garbage" / "_delta_log").mkdir(parents=True)
        (self.directory / "garbage" / "_delta_log" / f"{0:020}.json").write_text("garbage")
        yield self.sink_of(self.directory / "garbage")

    def away_sink(self) -> Sink:
        reached = {
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_REGION": "x", "AWS_ALLOW_HTTP": "true", "max_retries": "0",
        }  # fmt: skip
        return self.sink_of("s3://bucket/table", storage_options=reached)


class TestPartitionedDelta(TestDelta):
    options: Any = {"partition_by": ["part"]}

    def broken_sinks(self) -> Iterable[Sink]:
        return ()


def test_a_commit_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = TestPartitionedDelta()
    suite.directory = tmp_path
    sink: Any = suite.make_sink()
    synced: list[str] = []
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: synced.append(str(path)) or opened(path, flags))  # type: ignore[func-returns-value]
    suite._write(sink, suite._records(0, 2), None, SinkPosition("an id", 3))
    table = DeltaTable(sink.at)
    assert table.version() == 1
    assert set(synced) >= {*table.file_uris(), f"{sink.at}/_delta_log/{1:020}.json", f"{sink.at}/part=0", str(sink.at)}
    sync_commit(str(sink.at), 7)  # one that was cleaned up


def _kill_at(table: str, step: int, suite: TestDelta) -> None:
    """Write, and end this process before a step of that."""
    from penstock.plugins.testing.contracts.interruptions import call_at_step

    writer = suite.sink_of(table).open(SinkPlace("contract", "target", "contract-target-repartition", 0))
    position = SinkPosition("an id", 3), SinkPosition("an id", 7)
    call_at_step(
        step, lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: writer.write(suite._records(3, 4), *position)
    )


if __name__ == "__main__":
    _kill_at(
        sys.argv[1],
        int(sys.argv[2]),
        {each.__name__: each for each in (TestDelta, TestPartitionedDelta)}[sys.argv[3]](),
    )
