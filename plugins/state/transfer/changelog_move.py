"""Moving an application's changelog: the committed state of every task, copied to another place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from penstock import (
    Application,
    ConfigError,
    IncompatibleStateError,
    Log,
    Restore,
    Settings,
    StoreBackend,
    StoreBackendFactory,
    World,
)
from penstock.hooks import registry
from penstock.plugins.engine.program.changelog_location import (
    committed_state,
    note_location,
    reaches,
    stateful_tasks,
    stores_of,
)
from penstock.plugins.engine.program.preparation import Prepared
from penstock.plugins.engine.task.epoch import begin_epoch
from penstock.plugins.engine.task.locations import open_deltas
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.settings.secret import hide


@dataclass(frozen=True)
class Moved:
    """The tasks whose state `move_changelog` copied, and those whose state was in the new place already."""

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

    The caller holds the application's lease. A task's state appears as a whole, and a state that is in the new place is
    not copied again, so a move that was killed can be repeated. Nothing is deleted but what the new place has, from
    before a reset, of tasks without a commit. `on_task` is called with each task that was copied. `world`: the
    changelogs' files; None: the machine's. Raises ConfigError when `source` is not a changelog of the same kind,
    ChangelogError when it lacks a state, too, and IncompatibleStateError when there are `gone_stores`, which would stay
    behind.
    """
    application, assignment = prepared.application, prepared.assignment
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
        if commit is None:
            if task not in lost:
                _forget_earlier_life(from_settings, application, str(task), world)
            continue
        with closing(open_deltas(application.settings, application.id, str(task), world)) as target:
            if reaches(target, commit.version):
                target.sync()  # a move that was killed may not have come to that
                there.append(str(task))
                continue
            with closing(open_deltas(from_settings, application.id, str(task), world)) as origin:
                plan = origin.restore(commit.version, None)
                stores = stores_of(application, task)
                with restored(plan, stores) as backend:
                    rows = ((store, *row) for store in stores for row in backend.range(store))
                    target.snapshot(commit.version, rows, commit)
            target.restore(commit.version, None)
        copied.append(str(task))
        on_task(str(task))
    check_lease()
    note_location(application, log, prepared.identity)
    return Moved(tuple(copied), tuple(there))


def _forget_earlier_life(from_settings: Settings, application: Application, task: str, world: World | None) -> None:
    """Delete what the new place has of a task that has no commit: the place was left before the application was reset.

    A start would take it for the state of a commit that the log has lost. What the present place proves stays.
    """
    with (
        closing(open_deltas(from_settings, application.id, task, world)) as origin,
        closing(open_deltas(application.settings, application.id, task, world)) as target,
    ):
        if target.proven() and not origin.proven():
            target.destroy()
            target.sync()


@contextmanager
def restored(plan: Restore, stores: Sequence[str]) -> Iterator[StoreBackend]:
    """Restore a state on disk, because it need not fit into memory; the block gets the backend with its rows."""
    factory: StoreBackendFactory = registry().load("store backend", "lmdb")
    with TemporaryDirectory("restored") as directory, closing(factory(directory, stores)) as backend:
        for changes, version in plan.steps:
            known = {store: rows for store, rows in changes.items() if store in stores}
            backend.write(known, backend.version(), version)
        yield backend
