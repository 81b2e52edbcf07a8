"""External sinks of an application that gets another number of partitions: each record is written once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Application
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.sinks.memory import MemorySink
from penstock.plugins.state.transfer.reshard import accept, undo

from .growing import grow
from .runs import lease, new_log, produce, resharded, run, settings

KEYS = [f"k{number}" for number in range(9)]


@pytest.fixture
def target() -> Iterator[MemorySink]:
    sink = MemorySink("resharded")
    yield sink
    sink.forget()


def application(directory: Path, target: MemorySink, topic: str, *, is_direct: bool) -> Application:
    builder = StreamsBuilder()
    stream = builder.stream(topic)
    (stream if is_direct else stream.map_values(str.upper)).to_sink(target, "rows", value_serde=None)
    return Application("shop", builder, **settings(directory, "topic:"))


def rows(number: int) -> list[tuple[str, str, int]]:
    return [(key, f"V{number}", number) for key in KEYS]


@pytest.mark.parametrize("is_undone", [False, True])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("is_direct", [False, True])
def test_a_resharded_application_writes_each_record_once(
    is_direct: bool, grows: bool, is_undone: bool, target: MemorySink, tmp_path: Path
) -> None:
    """It was refused: no rule said what its positions in the target are for several tasks together."""
    log = new_log({"in": 2, "new": 5})
    before = application(tmp_path, target, "in", is_direct=is_direct)
    produce(log, "in", rows(0))
    run(before, log)
    produce(log, "in", rows(1))
    if grows:
        grow(log, "in", 5)
        then = before
        resharded(then, log, 5)
    else:
        then = application(tmp_path, target, "new", is_direct=is_direct)
        resharded(then, log, 5, sources={"in": "new"})
    topic = "in" if grows else "new"
    assert {place.application_id for place in target.positions} == {"shop"}
    if is_undone:
        undo(then, log, lease(then, log))
        if grows:
            return  # its old layout does not read the new partitions
        topic, then = "in", before
    else:
        accept(then, log, lease(then, log))
    produce(log, topic, rows(2))
    run(then, log)
    expected = sorted((key, f"V{number}") for number in range(3) for key in KEYS)
    assert sorted((record.key, record.value) for record in target.records) == expected
    assert {place.application_id for place in target.positions} == {"shop"}


def test_a_topic_that_grew_keeps_its_positions_in_the_target(target: MemorySink, tmp_path: Path) -> None:
    """A host of the layout before that was frozen would write what follows on a position of its own."""
    log = new_log({"in": 2})
    app = application(tmp_path, target, "in", is_direct=True)
    produce(log, "in", rows(0))
    run(app, log)
    before = dict(target.positions)
    grow(log, "in", 5)
    resharded(app, log, 5)
    produce(log, "in", rows(1) * 3)
    run(app, log)
    after = {place: position for place, position in target.positions.items() if place in before}
    assert len(target.positions) == 5 and len(target.records) == 4 * len(KEYS)
    assert all(after[place].next_offset > position.next_offset for place, position in before.items())
