"""Notes in the log: their names and bytes are saved state, so they stay as they are."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.notes import Note
from penstock.plugins.logs.memory import MemoryLog
from penstock.task.visits import Visit

FORMS: list[tuple[Note[Any], str, str, Any, bytes]] = [
    (notes.PROGRAM, "app", "program", {"b": 1, "a": None}, b'{"b": 1, "a": null}'),
    (notes.EPOCH, "app", "epoch", "1f", b"1f"),
    (notes.CHANGELOG.of("1f"), "app", "changelog-1f", "directory:/é", "directory:/é".encode()),
    (notes.CLUSTER, "app", "cluster", "4L6g3nShT-eMCtK--X86sw", b"4L6g3nShT-eMCtK--X86sw"),
    (notes.COMMITTED.of("1f"), "app", "committed-1f", {"b": [0], "a": [1]}, b'{"b": [0], "a": [1]}'),
    (notes.COMMITTED_IDS.of("1f"), "app", "committed-ids-1f", {"b": "2", "a": "1"}, b'{"a": "1", "b": "2"}'),
    (notes.PAUSED, "app", "paused", notes.Paused(None), b'{"subtopologies": null}'),
    (notes.VISITS, "app", "visits", [Visit(7, "node.each")], b'[[7, "node.each", null, false]]'),
    (notes.RESTORING, "app", "restoring", "import of x", b"import of x"),
    (notes.SLOT.of(3), "app", "slot-3", {"run": "r"}, b'{"run": "r"}'),
    (notes.APPLICATION_SERVER, "app", "application_server", "http://a:1", b"http://a:1"),
    (notes.TASK_SERVERS, "app", "task_servers", [{"tasks": None}], b'[{"tasks": null}]'),
    (notes.STORED_AS, "app-layouts", "stored-as", {"id": "x"}, b'{"id": "x"}'),
    (notes.GROWN, "app-layouts", "grown", {"ends": {}}, b'{"ends": {}}'),
    (notes.RESHARDING, "app-layouts", "resharding", {"number": 2}, b'{"number": 2}'),
]


def test_all_notes_are_here() -> None:
    every = {each.name for each in vars(notes).values() if isinstance(each, Note)}
    assert every == {name.removesuffix("-1f").removesuffix("-3") for _, _, name, _, _ in FORMS}


@pytest.mark.parametrize(("note", "application_id", "name", "value", "saved"), FORMS, ids=[each[2] for each in FORMS])
def test_its_bytes(note: Note[Any], application_id: str, name: str, value: Any, saved: bytes) -> None:
    log = MemoryLog()
    nothing = note.read("app", log)
    assert not nothing
    note.write("app", log, value)
    assert log.get_meta(application_id, name) == saved
    assert note.read("app", log) == value
    note.change("app", log, lambda before: value if before == value else nothing)
    assert log.get_meta(application_id, name) == saved
    note.take_back("app", log)
    assert (log.get_meta(application_id, name), note.read("app", log)) == (b"", nothing)
