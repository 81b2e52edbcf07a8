"""The id under which a log has an application: its own one, or another one since it was resharded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field

from penstock import Application, IncompatibleStateError, Lease, Log
from penstock.plugins.engine.task import notes


@dataclass(frozen=True)
class StoredAs:
    """Where an application is since its last resharding.

    `id`: its commits, internal topics and state have this id. `before`: the id of the previous layout, "" once it was
    given up. `sources`: replaced source topics, with their replacements; `left`: source topics replaced earlier.
    `starts`: the positions with which the tasks began, by topic and partition. `unused`: the id of a layout that was
    given up, while not all of it is deleted.
    """

    id: str
    before: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    left: Sequence[str] = ()
    starts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unused: str = ""


def read_stored(application_id: str, log: Log) -> StoredAs:
    """Return where an application is stored; without a resharding it has its own id."""
    saved = notes.STORED_AS.read(application_id, log)
    return StoredAs(**saved) if saved else StoredAs(application_id)


def write_stored(application_id: str, lease: Lease, stored: StoredAs) -> None:
    """Record where an application is stored, in one write. Raises as `Note.write`."""
    notes.STORED_AS.write(application_id, lease, asdict(stored))


def read_grown(stored: StoredAs, log: Log) -> Mapping[str, Mapping[str, int]]:
    """Return the topics that have grown before an application was resharded, with ends by partition.

    Records below such an end were written by an earlier number of partitions.
    """
    ends: Mapping[str, Mapping[str, int]] = notes.GROWN.read(stored.id, log).get("ends", {})
    return ends


def write_grown(layout_id: str, lease: Lease, grown: Mapping[str, Mapping[str, int]]) -> None:
    """Write what `read_grown` returns for a layout. Raises as `Note.write`."""
    notes.GROWN.write(layout_id, lease, {"ends": grown})


def stored_application(application: Application, log: Log) -> Application:
    """Return the application with the id that it has in the log; the same one if it was never resharded."""
    return stored_as(application, read_stored(application.id, log).id)


def stored_as(application: Application, stored_id: str) -> Application:
    """Return the application with the id that its log has it under; it keeps its own one as `given_id`."""
    made = renamed(application, stored_id)
    if made is not application:
        made.given_id = application.given_id or application.id
    return made


def renamed(application: Application, application_id: str) -> Application:
    """Return an application under another id."""
    if application_id == application.id:
        return application
    made = copy(application)
    made.id = application_id
    made.given = application.given.without({"application_id"})
    return made


def check_sources(application: Application, log: Log) -> None:
    """Raise IncompatibleStateError for a program that reads a topic which was replaced when it was resharded."""
    sources = read_stored(application.id, log).sources
    for old, new in sources.items():
        if old in application.program.topics():
            raise IncompatibleStateError(
                f"application {application.id!r} was resharded, and reads topic {new!r} in place of {old!r} since: "
                f"let its program read {new!r}"
            )
