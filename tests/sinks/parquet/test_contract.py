"""StagedSinkContract over Parquet files, on this host and through pyarrow, and wrong sinks that it has to find."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from penstock import SinkPlace, SinkRecord, StagedSink, StagedWriter
from penstock.contrib.parquet import parquet, read_files
from penstock.testing.contracts import StagedSinkContract

COLUMNS = {"name": "string", "n": "int64"}


class TestLocalFiles(StagedSinkContract):
    refused_value = "no number"
    options: Any = {}
    number = itertools.count()

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def make_sink(self) -> StagedSink:
        location = self.directory / str(next(self.number))
        location.mkdir()
        made: StagedSink = self.sink_of(str(location))
        return made

    def sink_of(self, location: str) -> Any:
        sink = parquet(location, columns=COLUMNS, key="name", max_age="1s", max_rows=7, **self.options)
        sink.at = location  # type: ignore[attr-defined]
        return sink

    def content(self, sink: Any) -> Iterable[tuple[Any, Any]]:
        for file in read_files(sink.at):
            for row in pq.ParquetFile(file).read().to_pylist():
                yield row["name"], row["n"]

    def broken_sinks(self) -> Iterable[StagedSink]:
        yield self.sink_of(str(self.directory / "missing"))
        (self.directory / "file").write_bytes(b"")
        yield self.sink_of(str(self.directory / "file"))
        yield self.sink_of("nothing://known/folder")


class TestDirectories(TestLocalFiles):
    options: Any = {"partition_by": {"second": "%H-%M-%S"}}


class TestFilesOfPyarrow(TestLocalFiles):
    """A file system without a fast way of its own: files are written aside and moved by pyarrow."""

    def sink_of(self, location: str) -> Any:
        if location.startswith(str(self.directory)):
            sink = parquet(
                location, columns=COLUMNS, key="name", max_age="1s", max_rows=7, filesystem=fs.LocalFileSystem()
            )
            sink.at = location  # type: ignore[attr-defined]
            return sink
        return super().sink_of(location)


# ---------------------------------------------------------------------------------------- wrong sinks


class Wrong(StagedWriter):
    """A writer around the right one, with a mistake."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def begin(self, store: Any, topic_id: str) -> None:
        self.inner.begin(store, topic_id)

    def stage(self, records: Sequence[SinkRecord], now_ms: int) -> Callable[[], None] | None:
        write: Callable[[], None] | None = self.inner.stage(records, now_ms)
        return write

    @property
    def due(self) -> int | None:
        due: int | None = self.inner.due
        return due

    def close(self) -> None:
        self.inner.close()


class WritesAtOnce(Wrong):
    """Writes the parts that this commit decides, too."""

    def stage(self, records: Sequence[SinkRecord], now_ms: int) -> Callable[[], None] | None:
        self.inner.stage(records, now_ms)
        return self.inner.stage([], now_ms)  # type: ignore[no-any-return]


class NamesByTurn(Wrong):
    """Gives each attempt a name of its own."""

    turns = itertools.count()

    def stage(self, records: Sequence[SinkRecord], now_ms: int) -> Callable[[], None] | None:
        turn = next(self.turns)
        self.inner._files._place = SinkPlace("contract", f"turn{turn}", "topic", 0)
        return super().stage(records, now_ms)


class ForgetsRows(Wrong):
    """Keeps rows in memory until a file is complete, and not in the store."""

    def begin(self, store: Any, topic_id: str) -> None:
        self.kept: list[SinkRecord] = []
        super().begin(store, topic_id)

    def stage(self, records: Sequence[SinkRecord], now_ms: int) -> Callable[[], None] | None:
        self.kept += records
        records, self.kept = (self.kept, []) if len(self.kept) >= 7 or not records else ([], self.kept)
        return super().stage(records, now_ms)


class ManifestFirst(Wrong):
    """Names files before they are there: a reader finds a part of them."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        folder = inner._folder
        write, waiting = folder.write, list[tuple[Any, ...]]()

        def delayed(name: str, data: Any, temporary: str) -> None:
            waiting.append((name, data, temporary))
            if name.startswith("_manifest"):
                for each in reversed(waiting):
                    write(*each)
                waiting.clear()

        folder.write = delayed


class OfWrong(TestLocalFiles):
    wrong: type[Wrong]

    def sink_of(self, location: str) -> Any:
        made, wrong = super().sink_of(location), self.wrong
        right = made.open

        class Sink(type(made)):  # type: ignore[misc]
            def open(self, place: SinkPlace) -> StagedWriter:
                return wrong(right(place))

        made.__class__ = Sink
        return made


@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        (WritesAtOnce, "test_nothing_is_written_before_its_commit"),
        (NamesByTurn, "test_an_interrupted_write_is_done_again"),
        (ForgetsRows, "test_state_and_target_continue_in_another_process"),
        (ManifestFirst, "test_an_interrupted_write_is_done_again"),
    ],
)
def test_the_contract_finds_wrong_sinks(tmp_path: Path, wrong: type[Wrong], finding: str) -> None:
    suite = OfWrong()
    suite.wrong, suite.directory = wrong, tmp_path
    with pytest.raises((AssertionError, pa.ArrowException, OSError)):
        getattr(suite, finding)()
