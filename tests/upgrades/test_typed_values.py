"""A store of typed values whose type changes between two starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock import Application
from penstock.errors import IncompatibleStateError
from penstock.log import Log
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.serdes.of import of
from penstock.plugins.testing.contracts.log_tests import read
from penstock.record import OutputBatch, TopicPartition

from ..processes import opened_workers


@dataclass
class Total:
    count: int = 0


@dataclass
class Extended:
    count: float = 0
    names: list[str] = field(default_factory=list)


@dataclass
class Other:
    count: str = ""


def add(total: Any, name: str) -> Any:
    total.count += 1
    if isinstance(total, Extended):
        total.names.append(name)
    return total


class World:
    """A log, and an application that keeps a total of each key in a value of one type."""

    def __init__(self, directory: Path, changelog: str) -> None:
        self.log: Log = MemoryLog()
        self._settings: dict[str, Any] = {"log": "memory:x", "changelog": changelog, "data_dir": str(directory)}
        self.log.create_topic("in", 1)
        self.log.create_topic("out", 1)

    def run(self, kind: Any) -> bytes | None:
        """Process a record with a program whose totals are of this type; return the last total."""
        builder = StreamsBuilder()
        grouped = builder.stream("in", key_serde="str", value_serde="str").group_by_key()
        totals = grouped.aggregate(kind, add, "totals", value_serde=of(kind))
        totals.filter(lambda total: True, "kept").to_stream().to("out")
        self._run(builder)
        return read(self.log, TopicPartition("out", 0))[-1].value

    def run_keyed(self, kind: Any) -> None:
        """Process a record with a program that counts under keys of this type; the record may wait in between."""
        builder = StreamsBuilder()
        words = builder.stream("in", key_serde="str", value_serde="str")
        words.group_by(lambda word: kind(1), key_serde=of(kind), name="by_kind").count("counts")
        self._run(builder)

    def _run(self, builder: StreamsBuilder) -> None:
        self.log.append(OutputBatch("in", [b"a"], [b"anna"], [1], None, [[0]]))
        with opened_workers(Application("app", builder, **self._settings), self.log) as workers:
            for worker in workers:
                worker.run_batch(self.log.end_offsets(worker.partitions), 0)

    def change_note(self, change: Callable[[str], str]) -> None:
        """Change what is noted of the program that ran last."""
        saved = self.log.get_meta("app", "program")
        assert saved is not None
        self.log.put_meta("app", "program", change(saved.decode()).encode())


@pytest.fixture(params=["directory:changelog", "topic:"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, request.param)
    yield made
    made.log.close()


def test_a_type_that_gains_a_field_reads_the_rows_that_it_has(world: World) -> None:
    assert world.run(Total) == b'{"count":1}'
    assert world.run(Extended) == b'{"count":2.0,"names":["anna"]}'
    assert world.run(Extended) == b'{"count":3.0,"names":["anna","anna"]}'


def test_a_type_that_loses_or_changes_a_field_is_refused_with_the_field(world: World) -> None:
    world.run(Extended)
    with pytest.raises(IncompatibleStateError) as caught:
        world.run(Total)
    assert (
        "store 'totals' was written with value_serde of(Total) as it was before, and field 'count' was number and is "
        "integer; field 'names' is gone: keep it, with a default if nothing sets it any more: its content cannot"
    ) in str(caught.value)
    with pytest.raises(IncompatibleStateError, match="store 'kept' .*field 'count' was number and is string"):
        world.run(Other)
    assert (
        world.run(Extended) == b'{"count":4.0,"names":["anna","anna","anna","anna"]}'
    )  # the refused starts changed nothing


def test_a_key_type_that_would_not_find_its_rows_is_refused(world: World) -> None:
    world.run_keyed(Total)
    with pytest.raises(IncompatibleStateError) as caught:
        world.run_keyed(Extended)
    assert (
        "store 'counts' was written with key_serde of(Extended) as it was before, and field 'count' was integer and is "
        "number; field 'names' is new, and keys from before do not have it: its rows would not be found by their keys; "
        "give it another name, and it starts empty"
    ) in str(caught.value)
    world.run_keyed(Total)


def test_keys_that_an_older_version_wrote_with_an_int_are_refused(world: World) -> None:
    world.run_keyed(Extended)
    world.change_note(lambda note: note.replace('\\"$numbers\\":true,', ""))
    with pytest.raises(IncompatibleStateError, match="with key_serde .*is written as that now: its rows"):
        world.run_keyed(Extended)
