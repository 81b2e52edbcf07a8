"""The id under which a log has an application: its own one, or another one since it was resharded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field

from penstock import Application, IncompatibleStateError, Lease, Log
from penstock.plugins.engine.task import notes


@dataclass(frozen=True)
class StoredAs:
    """Where an application is since its last resharding.

    `id`: its commits, internal topics and state have this id. `before`: the id of the previous layout, "" once it was
    given up. `sources`: each replaced source topic, with the one that is read in its place now; `left`: those of them
    that earlier reshardings replaced. `starts`: the positions with which the tasks began, by topic and partition.
    `unused`: the id of a layout that was given up, while not all of it is deleted.
    """

    id: str
    before: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    left: Sequence[str] = ()
    starts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unused: str = ""

    def replaced(self, sources: Mapping[str, str]) -> Mapping[str, str]:
        """Return the `sources` after another resharding, which replaces these."""
        return {**{old: sources.get(new, new) for old, new in self.sources.items()}, **sources}

    def replaced_before(self) -> Mapping[str, str]:
        """Return the `sources` before the last resharding."""
        last = {new: old for old, new in self.sources.items() if old not in self.left}
        return {old: last.get(new, new) for old, new in self.sources.items() if old in self.left}


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


def read_partitioned(stored: StoredAs, log: Log) -> frozenset[str]:
    """Return the source topics whose writers have a partitioner of their own, as the resharding of each was told."""
    return frozenset(notes.GROWN.read(stored.id, log).get("partitioned", ()))


def write_grown(
    layout_id: str, lease: Lease, grown: Mapping[str, Mapping[str, int]], partitioned: Collection[str]
) -> None:
    """Write what `read_grown` and `read_partitioned` return for a layout. Raises as `Note.write`."""
    more = {"partitioned": sorted(partitioned)} if partitioned else {}
    notes.GROWN.write(layout_id, lease, {"ends": grown, **more})


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
    stored = read_stored(application.id, log)
    for old in (*stored.sources, *stored.left):
        if old in application.program.topics():
            # Earlier versions of penstock noted the replacements of the last resharding alone.
            new = repr(stored.sources[old]) if old in stored.sources else "another one"
            raise IncompatibleStateError(
                f"application {application.id!r} was resharded, and reads topic {new} in place of {old!r} since: "
                f"let its program read {new}"
            )
