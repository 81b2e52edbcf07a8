"""A program that changes again and again: the note about it stays small enough for a log."""

from __future__ import annotations

from pathlib import Path

from penstock import Application, Processor, Record, Topology, key_value_store
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.saved_program import read_note
from penstock.plugins.logs.memory import MemoryLog

MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default of `max.message.bytes`."""


class Pass(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)


def program(directory: Path, stores: int) -> Application:
    """Return a program of four sub-topologies, each with so many stores."""
    topology = Topology()
    for part in "abcd":
        kept = [key_value_store(f"{part}-with-a-rather-long-name-{number}") for number in range(stores)]
        topology.add_source(f"in-{part}", f"in-{part}").add_processor(f"keep-{part}", Pass, f"in-{part}", stores=kept)
    return Application("app", topology, log="memory:x", data_dir=str(directory), changelog="directory:changes")


def test_the_note_of_a_program_that_has_changed_often(tmp_path: Path) -> None:
    log = MemoryLog()
    for part in "abcd":
        log.create_topic(f"in-{part}", 1)
    for stores in range(80, 120):
        prepare(program(tmp_path, stores), log)
    note = log.get_meta("app", "program")
    assert note is not None and len(note) < MAX_MESSAGE_BYTES // 2
    layouts = read_note("app", log)["layouts"]
    for each in layouts.values():
        assert len(each["now"]) == 119
        assert [len(layout) for layout in each["earlier"].values()][-3:] == [116, 117, 118], "the last ones stay"
