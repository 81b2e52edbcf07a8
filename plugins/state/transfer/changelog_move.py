"""Moving an application's changelog: the committed state of every task, copied to another place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from penstock import ConfigError, IncompatibleStateError, Log, World
from penstock.plugins.engine.program.preparation import Prepared
from penstock.plugins.engine.program.saved_program import (
    committed_state,
    note_location,
    reaches,
    stateful_tasks,
    stores_of,
)
from penstock.plugins.engine.task.epoch import begin_epoch
from penstock.plugins.engine.task.locations import open_deltas
from penstock.plugins.state.copies.state_reader import StateReader
from penstock.settings.secret import hide

from .task_writer import TaskWriter


@dataclass(frozen=True)
class Moved:
    """The tasks whose state `move_changelog` copied, and the tasks whose state was in the new place already."""

    copied: tuple[str, ...]
    there: tuple[str, ...]


def move_changelog(
    prepared: Prepared,
    log: Log,
    source: str,
    check_lease: Callable[[], None],
    on_task: Callable[[str], None] = lambda task: None,
    world: World | None = None,
) -> Moved:
    """Copy the committed state of every task from the changelog `source` (NAME:LOCATION) to the one in the settings.

    The caller holds the application's lease. A state appears as a whole, and is copied once, so a move that was killed
    can be repeated. It deletes what the new place has of tasks without a commit, from before a reset. `on_task` is
    called with each task that was copied. Raises ConfigError when `source` is not a changelog of the same kind,
    ChangelogError when it lacks a state, and IncompatibleStateError for `gone_stores`, which would stay behind.
    """
    application, assignment, world = prepared.application, prepared.assignment, world or World()
    name = application.settings.changelog.partition(":")[0]
    from_settings = replace(application.settings, changelog=source)
    if source.partition(":")[0] != name or application.settings.log_changelog is not None:
        raise ConfigError(
            f"--from {hide('changelog', source)!r}: expected another location of the changelog in force, which is "
            f"{application.settings.shown('changelog')!r}; state moves between places of one kind, and one "
            "that lives in the log stays there"
        )
    if prepared.gone_stores:
        raise IncompatibleStateError(
            f"application {application.id!r} has parked stores in sub-topologies that the program does not have: "
            f"{', '.join(prepared.gone_stores)}. No task would copy them: move with the program that names them, or "
            "give up their content first (`penstock stores drop`)"
        )
    check_lease()
    begin_epoch(application.id, log)  # hosts that have the old place open no task from now on
    copied, there, lost = [], [], prepared.committed.lost(assignment)
    for task in stateful_tasks(application, assignment):
        check_lease()
        commit = committed_state(application, assignment, log, task)
        with (
            closing(open_deltas(from_settings, application.id, str(task), world)) as origin,
            closing(open_deltas(application.settings, application.id, str(task), world)) as target,
        ):
            if commit is None:
                # A start would take what is left from before a reset for the state of a commit that the log has lost.
                if task not in lost and target.proven() and not origin.proven():
                    target.destroy()
                    target.sync()
            elif reaches(target, commit.version):
                target.sync()  # a move that was killed may not have come to that
                there.append(str(task))
            else:
                with StateReader(origin, commit.version, stores_of(application, task)) as state:
                    TaskWriter(target, world).write(state.rows(), commit)
                copied.append(str(task))
                on_task(str(task))
    check_lease()
    note_location(application, log, prepared.identity)
    return Moved(tuple(copied), tuple(there))
