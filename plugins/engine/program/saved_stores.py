"""The saved stores of an application: listing them, taking a parked one back, dropping content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock import Application, ConfigError, Lease, Log
from penstock.plugins.engine.task.epoch import begin_epoch
from penstock.support.names import changelog_topic, did_you_mean

from .check import missed
from .saved_program import drop_store, read_note, saved_subtopologies, write_note


@dataclass(frozen=True)
class SavedStore:
    """A saved store.

    `parked`: the program that ran last did not name it. `missed`: how far its tasks have gone on since, as text.
    `accepted`: it may come back all the same.
    """

    name: str
    subtopology: int
    backend: str
    logged: bool
    parked: bool
    missed: tuple[str, ...]
    accepted: bool


def saved_stores(application_id: str, log: Log) -> list[SavedStore]:
    """Return the stores that the program which ran last saved, and those that are parked; none if none ran."""
    note = read_note(application_id, log)
    parked = note.get("parked", {})
    found = []
    for number, each in saved_subtopologies(note).items() if note else ():
        for name in each["stores"]:
            kept, aside = note["layouts"][number]["now"][name], parked.get(name)
            found.append(
                SavedStore(
                    name,
                    int(number),
                    kept["backend"],
                    kept["logged"],
                    aside is not None,
                    () if aside is None else tuple(missed(application_id, note, aside, log)),
                    aside is not None and aside.get("accepted", False),
                )
            )
    return sorted(found, key=lambda each: (each.subtopology, each.name))


def accept_stores(application_id: str, log: Log, lease: Lease, names: Sequence[str]) -> None:
    """Let parked stores come back with their old content, whatever they have missed.

    Raises ConfigError for a store that is not parked, and FencedError when the application's lease was lost; then
    nothing has changed.
    """
    note = read_note(application_id, log)
    parked = note.get("parked", {})
    for name in names:
        _check_known(application_id, name, list(parked), "parked store")
        parked[name]["accepted"] = True
    begin_epoch(application_id, lease)
    write_note(application_id, lease, note)


def drop_stores(application: Application, log: Log, lease: Lease, names: Sequence[str]) -> None:
    """Drop the content of stores: a store of such a name starts empty from now on, on every machine.

    This is one write to the log. The tasks delete their content when they are opened next. Raises ConfigError for a
    store that the application did not save, and FencedError when the application's lease was lost.
    """
    note = read_note(application.id, log)
    known = (
        {name: number for number, each in saved_subtopologies(note).items() for name in each["stores"]} if note else {}
    )
    for name in names:
        _check_known(application.id, name, list(known), "store")
        drop_store(note, known[name], name)
    begin_epoch(application.id, lease)
    write_note(application.id, lease, note)
    # If this process is killed before a topic is deleted, the tasks empty that topic.
    topics = log.topics()
    for topic in (changelog_topic(application.id, name) for name in names):
        if topic in topics and topics[topic].internal:
            lease.renew()
            log.delete_topic(topic)


def _check_known(application_id: str, name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        advice = did_you_mean(name, known) or f"it has: {', '.join(sorted(known)) or 'none'}"
        raise ConfigError(f"application {application_id!r} has no {what} {name!r}; {advice}")
