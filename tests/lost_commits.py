"""A log that loses an application's commits and keeps its notes, as a broker does when a group's offsets expire or are
deleted."""

from __future__ import annotations

import json

from penstock import Log


def lose_commits(log: Log, application_id: str) -> None:
    """Delete every committed position."""
    program = log.get_meta(application_id, "program")
    assert program is not None
    note = f"committed-{json.loads(program)['identity']}"
    committed = log.get_meta(application_id, note)
    log.delete_commits(application_id)
    log.put_meta(application_id, "program", program)
    if committed is not None:
        log.put_meta(application_id, note, committed)
