"""A log that loses an application's commits and keeps its notes, as a broker does when a group's offsets expire or are
deleted."""

from __future__ import annotations

import json

from penstock import Log


def lose_commits(log: Log, application_id: str) -> None:
    """Delete every committed position."""
    program = log.get_meta(application_id, "program")
    assert program is not None
    identity = json.loads(program)["identity"]
    keys = ("program", "epoch", f"committed-{identity}", f"committed-ids-{identity}")
    notes = {key: note for key in keys if (note := log.get_meta(application_id, key)) is not None}
    log.delete_commits(application_id)
    for key, note in notes.items():
        log.put_meta(application_id, key, note)
