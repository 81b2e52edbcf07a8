"""Paused: which sub-topologies of an application process no records for now, as a note in its log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from penstock import Application, ConfigError, IncompatibleStateError, Log
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.notes import Paused

from .stored_id import read_stored, stored_application


def read_paused(application_id: str, log: Log) -> Paused:
    """Return the paused sub-topologies; none without a note."""
    return notes.PAUSED.read(application_id, log)


def pause(application: Application, log: Log, subtopologies: Collection[int] = ()) -> Paused:
    """Pause further sub-topologies, or all without a number; return the paused ones.

    Runs read the note within some seconds. Raises ConfigError for a number that the program does not have.
    """
    _check(application, subtopologies)

    def more(before: Paused) -> Paused:
        if not subtopologies or before.subtopologies is None:
            return Paused(None)
        return Paused(before.subtopologies | frozenset(subtopologies))

    return _change(application, log, more)


def resume(application: Application, log: Log, subtopologies: Collection[int] = ()) -> Paused:
    """Resume some sub-topologies, or all without a number; return those still paused. Raises as `pause`."""
    _check(application, subtopologies)
    rest = frozenset(subtopologies) or _numbers(application)
    return _change(application, log, lambda before: Paused(before.of(application) - rest))


def check_not_paused(application: Application, log: Log) -> None:
    """Raise IncompatibleStateError while a sub-topology is paused: a resharding processes all records of its topics."""
    numbers = read_paused(application.id, log).of(application)
    if numbers:
        raise IncompatibleStateError(
            f"application {application.id!r}: sub-topologies {', '.join(map(str, sorted(numbers)))} are paused, and "
            "what their topics have would be processed: run `penstock resume`, and this again"
        )


@contextmanager
def carrying_pause(application_id: str, to: str, log: Log) -> Iterator[None]:
    """Carry pauses from an id to the id `to`; the block stores the application there.

    What is paused or resumed meanwhile counts, too: see `change_stored`.
    """
    carried = read_paused(application_id, log)
    if carried != read_paused(to, log):
        notes.PAUSED.write(to, log, carried)
    yield
    late = read_paused(application_id, log)
    if late != carried:
        notes.PAUSED.write(to, log, late)


def change_stored(
    application: Application, log: Log, change: Callable[[Application], Paused]
) -> tuple[Application, Paused]:
    """Call `change` with the application as it is stored; return it, and the paused sub-topologies.

    A resharding carries the note before and after it stores the application elsewhere: a later change is made there.
    """
    while True:
        stored = stored_application(application, log)
        paused = change(stored)
        if read_stored(application.id, log).id == stored.id:
            return stored, paused


def _change(application: Application, log: Log, change: Callable[[Paused], Paused]) -> Paused:
    now = Paused()

    def changed(before: Paused) -> Paused:
        nonlocal now
        now = change(before)
        return now

    notes.PAUSED.change(application.id, log, changed)
    return now


def _check(application: Application, subtopologies: Collection[int]) -> None:
    every = _numbers(application)
    for number in subtopologies:
        if number not in every:
            raise ConfigError(
                f"application {application.id!r} has no sub-topology {number}; it has "
                f"{', '.join(map(str, sorted(every)))} (`penstock describe` shows them)"
            )


def _numbers(application: Application) -> frozenset[int]:
    return frozenset(subtopology.id for subtopology in application.program.subtopologies)
