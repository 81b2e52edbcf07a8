"""What a program must have in common with the one that wrote a checkpoint: each task checks it when it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock import Application, IncompatibleStateError, TaskId, check_compatible
from penstock.program.compatibility import saved_serdes

from .stream_commit import StreamCommit

Stores = Mapping[str, Mapping[str, Any]]
"""The stores of a sub-topology in a fingerprint."""


def stores_in(fingerprint: Mapping[str, Any], subtopology: int) -> Stores:
    """Return the stores of a sub-topology; none where the program does not have it."""
    found: Stores = fingerprint["subtopologies"].get(str(subtopology), {}).get("stores", {})
    return found


def check_continues(
    application: Application, task: TaskId, query: str, known: StreamCommit, fingerprint: Mapping[str, Any]
) -> None:
    """Check that a task can continue from a commit of a query. `fingerprint`: that of the application's program.

    Raises IncompatibleStateError for another application id, or a program that does not fit the saved state.
    """
    where = f"application {application.id!r}, task {task}"
    if known.application not in ("", application.id):
        raise IncompatibleStateError(
            f"{where}: the checkpoint of Spark's query {query} was made with the application id "
            f"{known.application!r}, which its state is kept by: use that id, or start with a new checkpoint"
        )
    before = known.fingerprint
    if before == fingerprint:
        return
    reasons = [
        *check_compatible(before, fingerprint, serdes=saved_serdes(application.program, application.settings)),
        *changes_of_history(stores_in(before, task.subtopology), stores_in(fingerprint, task.subtopology)),
    ]
    if reasons:
        raise IncompatibleStateError(
            f"{where}: it does not fit what Spark's checkpoint has of it: {'; '.join(reasons)}. Undo the change (the "
            "number of tasks is what transform(..., partitions=...) says), or start with a new checkpoint"
        )


def changes_of_history(was: Stores, now: Stores) -> Iterator[str]:
    """Yield a reason for each change of a store that would need a separate commit of the task."""
    for name, new in now.items():
        old = was.get(name)
        if old is None:
            continue
        if old["logged"] != new["logged"]:
            yield (
                f"store {name!r} was {'' if old['logged'] else 'not '}in the changelog (logged) and now "
                f"is{' not' if old['logged'] else ''}"
            )
        if not new["logged"] and old["backend"] != new["backend"]:
            yield (
                f"store {name!r}, which is not logged, was on the backend {old['backend']!r} and now is on "
                f"{new['backend']!r}"
            )
        if _expires(old) and not _expires(new):
            yield (
                f"store {name!r} had a TTL and now has none, which would bring back what has expired: give it "
                "expires=True, with which new entries stay"
            )


def _expires(store: Mapping[str, Any]) -> bool:
    """Return whether entries of a store in a fingerprint may carry an expiry."""
    return store.get("ttl_ms") is not None or bool(store.get("expires"))
