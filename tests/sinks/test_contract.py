"""SinkContract over our own sinks, and the wrong sinks that it has to find."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from penstock import (
    Sink,
    SinkMovedError,
    SinkPlace,
    SinkPosition,
    SinkRecord,
    SinkRefusedError,
    SinkUnavailableError,
    SinkWriter,
)
from penstock.contrib.postgres import postgres as postgres_sink
from penstock.testing import MemorySink
from penstock.testing.contracts import SinkContract

from .postgres_server import PostgresServer

COLUMNS = {"name": "text", "n": "bigint"}


class TestMemorySink(SinkContract):
    outlives_processes = False
    refused_value = "refused"

    def make_sink(self) -> Sink:
        made = MemorySink("contract", refuses=lambda record: "no" if record.value == "refused" else "")
        made.forget()
        return made

    def content(self, sink: Any) -> Iterable[tuple[Any, Any]]:
        return [(record.key, record.value) for record in sink.records]

    def away_sink(self) -> Sink:
        made = MemorySink("away")
        made.is_away = True
        return made


class TestPostgresInserts(SinkContract):
    refused_value = "no number"
    mode = "insert"
    columns: Any = COLUMNS
    number = itertools.count()

    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.server = postgres

    def make_sink(self) -> Sink:
        # Positions of places stay between sinks of a test, so each has a schema of its own.
        schema = f"s{next(self.number)}"
        self.server.query(f"CREATE SCHEMA {schema}")
        return self.sink_of(f"{schema}.rows")

    def sink_of(self, table: str, **options: Any) -> Sink:
        given = {"columns": self.columns, "key": "name", "mode": self.mode, **options}
        return postgres_sink(self.server.dsn, table=table, **given)

    def content(self, sink: Any) -> Iterable[tuple[Any, Any]]:
        table = ".".join(sink.table)
        (there,) = self.server.query("SELECT to_regclass(%s)", table)
        return self.server.query(f"SELECT name, n FROM {table}") if there[0] is not None else []

    def restart(self) -> None:
        self.server.stop()
        self.server.start()

    def broken_sinks(self) -> Iterable[Sink]:
        self.server.query("CREATE TABLE lacks (name text PRIMARY KEY)")
        self.server.query("CREATE TABLE other (name text PRIMARY KEY, n text)")
        self.server.query("CREATE TABLE more (name text PRIMARY KEY, n bigint, m integer NOT NULL)")
        self.server.query("CREATE TABLE unkeyed (name text, n bigint)")
        yield self.sink_of("missing", columns=None)
        yield self.sink_of("nowhere.rows")
        yield self.sink_of("lacks")
        yield self.sink_of("other")
        yield self.sink_of("more")
        yield self.sink_of("unkeyed", mode="upsert")
        yield postgres_sink(self.server.dsn.replace("postgres", "nowhere"), table="rows", columns=COLUMNS)

    def away_sink(self) -> Sink:
        return postgres_sink("host=/nowhere dbname=postgres", table="rows", columns=COLUMNS)


def _row(record: SinkRecord) -> dict[str, Any]:
    return {"n": record.value, "tags": ["a"]}


class TestPostgresUpserts(TestPostgresInserts):
    mode = "upsert"


class TestPostgresWithoutCopy(TestPostgresInserts):
    """A type that is written as psycopg does goes by INSERT."""

    columns = {"name": "text", "n": "bigint", "tags": "text[]"}

    def sink_of(self, table: str, **options: Any) -> Sink:
        return super().sink_of(table, row=_row, **options)


# ---------------------------------------------------------------------------------------- what is planted


class Planted(Sink):
    """A right sink in memory, whose steps the wrong ones override."""

    def __init__(self) -> None:
        self.rows: list[SinkRecord] = []
        self.positions: dict[Any, SinkPosition] = {}

    def __reduce__(self) -> Any:
        return _the_same, (_register(self),)

    def open(self, place: SinkPlace) -> SinkWriter:
        return PlantedWriter(self, place)

    def key(self, place: SinkPlace) -> Any:
        return place

    def check(self, writer: PlantedWriter, follows: SinkPosition | None) -> None:
        if self.positions.get(self.key(writer.place)) != follows:
            raise SinkMovedError("moved")

    def check_rows(self, records: Sequence[SinkRecord]) -> None:
        if any(record.value == "refused" for record in records):
            raise SinkRefusedError("refused")

    def write(self, writer: PlantedWriter, records: Sequence[SinkRecord], ends: SinkPosition) -> None:
        self.check_rows(records)
        self.rows, self.positions = [*self.rows, *records], {**self.positions, self.key(writer.place): ends}


class PlantedWriter(SinkWriter):
    def __init__(self, sink: Planted, place: SinkPlace) -> None:
        self.sink, self.place = sink, place
        self.seen = sink.positions.get(sink.key(place))

    @property
    def position(self) -> SinkPosition | None:
        return self.seen

    def write(self, records: Sequence[SinkRecord], follows: SinkPosition | None, ends: SinkPosition) -> None:
        self.sink.check(self, follows)
        self.sink.write(self, records, ends)
        self.seen = ends

    def close(self) -> None:
        pass


_sinks: list[Planted] = []


def _register(sink: Planted) -> int:
    _sinks.append(sink)
    return len(_sinks) - 1


def _the_same(number: int) -> Planted:
    return _sinks[number]


class ChecksNothing(Planted):
    def check(self, writer: PlantedWriter, follows: SinkPosition | None) -> None:
        pass


class ChecksItsMemory(Planted):
    def check(self, writer: PlantedWriter, follows: SinkPosition | None) -> None:
        if writer.seen != follows:
            raise SinkMovedError("moved")


class ChecksOffsetsOnly(Planted):
    def check(self, writer: PlantedWriter, follows: SinkPosition | None) -> None:
        found = self.positions.get(self.key(writer.place))
        if (found and found.next_offset) != (follows and follows.next_offset):
            raise SinkMovedError("moved")


class TakesANewOneAtAnyPlace(Planted):
    def check(self, writer: PlantedWriter, follows: SinkPosition | None) -> None:
        if follows is not None:
            super().check(writer, follows)


class RefusesOnlyOlderOnes(Planted):
    def check(self, writer: PlantedWriter, follows: SinkPosition | None) -> None:
        found = self.positions.get(self.key(writer.place))
        if found is not None and (follows is None or follows.next_offset < found.next_offset):
            raise SinkMovedError("moved")


class WritesRowsThenThePosition(Planted):
    def write(self, writer: PlantedWriter, records: Sequence[SinkRecord], ends: SinkPosition) -> None:
        self.check_rows(records)
        self.rows += records
        self._move(writer, ends)

    def _move(self, writer: PlantedWriter, ends: SinkPosition) -> None:
        self.positions[self.key(writer.place)] = ends


class WritesThePositionFirst(WritesRowsThenThePosition):
    def write(self, writer: PlantedWriter, records: Sequence[SinkRecord], ends: SinkPosition) -> None:
        self._move(writer, ends)
        self.check_rows(records)
        self.rows += records


class KeepsRowsBeforeARefusal(WritesRowsThenThePosition):
    def write(self, writer: PlantedWriter, records: Sequence[SinkRecord], ends: SinkPosition) -> None:
        for record in records:
            self.check_rows([record])
            self.rows.append(record)
        self._move(writer, ends)


class DropsWhatItRefuses(Planted):
    def write(self, writer: PlantedWriter, records: Sequence[SinkRecord], ends: SinkPosition) -> None:
        super().write(writer, [record for record in records if record.value != "refused"], ends)


class CallsARefusalAway(Planted):
    def check_rows(self, records: Sequence[SinkRecord]) -> None:
        try:
            super().check_rows(records)
        except SinkRefusedError as error:
            raise SinkUnavailableError(str(error)) from error


class OnePositionForAllPartitions(Planted):
    def key(self, place: SinkPlace) -> Any:
        return place.application_id, place.sink, place.topic


class OnePositionForAllApplications(Planted):
    def key(self, place: SinkPlace) -> Any:
        return place.sink, place.topic, place.partition


class ForgetsThePositionOfATopic(Planted):
    def write(self, writer: PlantedWriter, records: Sequence[SinkRecord], ends: SinkPosition) -> None:
        super().write(writer, records, SinkPosition("", ends.next_offset))


class CountsRecordsForOffsets(Planted):
    def write(self, writer: PlantedWriter, records: Sequence[SinkRecord], ends: SinkPosition) -> None:
        before = writer.seen.next_offset if writer.seen else 0
        super().write(writer, records, SinkPosition(ends.topic_id, before + len(records)))


class IsEmptyElsewhere(Planted):
    def __reduce__(self) -> Any:
        return type(self), ()


class WritesAThousand(Planted):
    def write(self, writer: PlantedWriter, records: Sequence[SinkRecord], ends: SinkPosition) -> None:
        super().write(writer, records[:1_000], ends)


def suite_of(kind: Callable[[], Planted]) -> SinkContract:
    class Suite(SinkContract):
        outlives_processes = False
        refused_value = "refused"

        def make_sink(self) -> Sink:
            return kind()

        def content(self, sink: Any) -> Iterable[tuple[Any, Any]]:
            return [(record.key, record.value) for record in sink.rows]

    return Suite()


def failures(suite: SinkContract) -> list[str]:
    found = []
    for name in dir(suite):
        if name.startswith("test_") and name != "test_of_two_writers_at_a_time_one_writes":  # it needs a lock
            try:
                getattr(suite, name)()
            except Exception as error:
                found.append(f"{name}: {error}")
    return found


def test_the_right_one_passes() -> None:
    assert failures(suite_of(Planted)) == []


PLANTED = [
    ChecksNothing, ChecksItsMemory, ChecksOffsetsOnly, TakesANewOneAtAnyPlace, RefusesOnlyOlderOnes,
    WritesRowsThenThePosition, WritesThePositionFirst, KeepsRowsBeforeARefusal, DropsWhatItRefuses, CallsARefusalAway,
    OnePositionForAllPartitions, OnePositionForAllApplications, ForgetsThePositionOfATopic, CountsRecordsForOffsets,
    IsEmptyElsewhere, WritesAThousand,
]  # fmt: skip


@pytest.mark.parametrize("kind", PLANTED)
def test_each_wrong_one_is_found(kind: type[Planted]) -> None:
    assert failures(suite_of(kind))
