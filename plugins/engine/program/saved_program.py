"""The note in the log about the program that ran last under an application id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from penstock import Lease, Log
from penstock.plugins.engine.task.refusals import check_note

_META = "program"

Note = dict[str, Any]
"""The note of the program that ran last.

`identity`: the application's incarnation. `fingerprint`; `changelog`. `reads`: the topics of each sub-topology by their
names in the log. `layouts` by sub-topology. `parked`: parked stores. `gone`: sub-topologies of which only parked stores
are left. `lives`: how often each store was dropped. `values`: `BY_STORE`. `whole_keys`: see windowed_keys.py.
"""


def saved_fingerprint(application_id: str, log: Log) -> Mapping[str, Any] | None:
    """Return the fingerprint of the program that ran last under this id, parked stores included; None if none did.

    Also that of an older version of penstock, so that it can be reset.
    """
    note = read_note_of_any_version(application_id, log)
    return {**note["fingerprint"], "subtopologies": saved_subtopologies(note)} if note else None


def read_note(application_id: str, log: Log) -> Note:
    """Return the note of the program that ran last under this id; empty if none did.

    Raises IncompatibleStateError if another version of penstock saved it in a form that this one does not read.
    """
    note = read_note_of_any_version(application_id, log)
    if note:
        check_note(application_id, note)
    return note


def read_note_of_any_version(application_id: str, log: Log) -> Note:
    """Return the note as it is, for what must work on notes that this version does not read; empty if there is none."""
    saved = log.get_meta(application_id, _META)
    note: Note = {} if saved is None else json.loads(saved)
    return note


def is_same_program(note: Note, other: Note) -> bool:
    """Return whether two notes are of one program and incarnation; its second start writes some fields more."""
    return _compared(note) == _compared(other)


def _compared(note: Note) -> Note:
    layouts = {
        number: {**each, "earlier": {name: old for name, old in each["earlier"].items() if old != each["now"]}}
        for number, each in note.get("layouts", {}).items()
    }
    return {"parked": {}, "gone": {}, "whole_keys": [], **note, "layouts": layouts}


def write_note(application_id: str, log: Log | Lease, note: Note) -> None:
    """Write the note. The caller holds the application's lease; `log`: that lease, where it may have been lost."""
    log.put_meta(application_id, _META, json.dumps(note).encode())


def saved_subtopologies(note: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the saved sub-topologies by number, with gone sub-topologies and parked stores."""
    found = deepcopy({**note.get("gone", {}), **note["fingerprint"]["subtopologies"]})
    for name, each in note.get("parked", {}).items():
        found[each["subtopology"]]["stores"][name] = each["store"]
    return found


def repartition_topics(application_id: str, note: Note) -> set[str]:
    """Return the internal topics of the saved program as the log names them; none if no program was saved."""
    return {f"{application_id}-{each}" for each in note["fingerprint"]["internal_topics"]} if note else set()


def gone_stores(note: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parked stores of sub-topologies that are gone."""
    gone = note.get("gone", {})
    return tuple(sorted(name for name, each in note.get("parked", {}).items() if each["subtopology"] in gone))


def drop_store(note: Note, number: str, name: str) -> None:
    """Change a note so that a store of this name starts afresh in the next program."""
    note.setdefault("lives", {})[name] = note.get("lives", {}).get(name, 0) + 1
    if note.get("parked", {}).pop(name, None) is None:
        del note["fingerprint"]["subtopologies"][number]["stores"][name]
    if not any(each["subtopology"] == number for each in note.get("parked", {}).values()):
        note.get("gone", {}).pop(number, None)
