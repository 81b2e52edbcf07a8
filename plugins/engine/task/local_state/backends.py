"""Backends: opens a task's local store directories, and restores them to the committed version."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock import (
    RESTORING,
    IncompatibleStateError,
    Restore,
    RestoreListener,
    StaleStoreError,
    StoreBackend,
    StoreLockedError,
    StoreView,
    TaskChangelog,
    World,
)
from penstock.hooks import registry
from penstock.program.layouts import Layouts, id_of_version
from penstock.store import Change, Changes
from penstock.store.backend import in_portions
from penstock.store.kept_store import KeptStore
from penstock.support.names import index_name
from penstock.support.private_files import make_private_directory, write_private_text

from ..locations import live_directory, making_state_directory
from .directories import DirectoryUse
from .restoring import Restoring, Stretch

_log = logging.getLogger("penstock.state")

OF_REPLICA = "incarnation"
"""The file in a directory whose content a replica wrote: it has nothing of stores that are not in the changelog."""
_UNFILLED = "unfilled:"
"""How the name of a copy begins before its read-only stores are filled; a token and the name afterwards follow."""
_PARTIAL = "partial:"
"""How the name of a copy begins that has only the stores of a later layout than that of its version.

The id of the later layout and the version follow. A program of another layout, and a reader, uses no such copy."""


@dataclass(eq=False)
class Backends:
    """One backend per backend name, each in a directory of its own under `directory`.

    `where` names the application and the task in errors; `listener` gets events of restores. Called by one thread at a
    time; `opening` is for any thread.
    """

    directory: Path
    layouts: Layouts
    changelog: TaskChangelog | None
    where: str
    task_id: str
    world: World
    listener: RestoreListener | None = None

    def __post_init__(self) -> None:
        self._lacks_filled = False
        self._partial = f"{_PARTIAL}{self.layouts.id}:"
        self._names: dict[str, list[str]] = {}
        for store, kept in self.layouts.now.items():
            self._names.setdefault(kept.backend, []).extend(kept.tables(store))
        self._opened: dict[str, StoreBackend] = {}
        self._kept_as: dict[str, str] = {}
        """By backend: the name that the copy got when it was opened."""
        self._replaced: dict[str, StoreBackend] = {}
        self._use: DirectoryUse | None = None
        self.restoring = Restoring(self.task_id, self.world.seconds, self.listener)
        self.opening = Stretch(f"task {self.task_id}")
        self.refills: Mapping[str, Callable[[StoreBackend], Iterator[Changes]]] = {}
        """By read-only store: returns the changes that fill its empty backend."""

    # ------------------------------------------------------------------ opening

    def open(self, version: str, coverage: Coverage) -> None:
        """Bring every backend to `version`. Raises ChangelogError when it cannot be reached."""
        gone = coverage.gone
        if self._names or gone:
            self._use = DirectoryUse(self.directory, self.world)
        of_replica = self.directory / OF_REPLICA
        self._lacks_filled = of_replica.exists()
        for name, stores in self._names.items():
            self._open_backend(name, [*stores, *gone.get(name, ())], version, coverage)
        self._take_over(version, coverage)
        of_replica.unlink(missing_ok=True)

    def open_empty(self, version: str) -> None:
        """Open new, empty backends at `version`."""
        for name, stores in self._names.items():
            backend = self._opened[name] = self._opening(name, 0, stores)()
            backend.write({}, backend.version(), version)

    def open_as_found(self, coverage: Coverage) -> None:
        """Open every backend with the content that this machine has, for `bring_to`; nothing is read.

        The caller has the directory (`SoleUse`). Raises StoreLockedError where another process has a backend open that
        only one process can have open.
        """
        for name, stores in self._names.items():
            tables = [*stores, *coverage.gone.get(name, ())]
            self._opened[name] = self._opening(name, self._latest(name), tables)()

    def bring_to(self, version: str, coverage: Coverage) -> None:
        """Bring open backends from their present version to another one, as `open` does.

        Raises ChangelogError when it cannot be reached; each backend is then at a version on the way, or at none.
        """
        for name, stores in self._names.items():
            opening = self._opening(name, self._latest(name), [*stores, *coverage.gone.get(name, ())])
            reopen = partial(self._reopen, name, opening)
            self._bring_to(self._opened[name], reopen, name, version, coverage)

    def _reopen(self, name: str, opening: Callable[[], StoreBackend]) -> StoreBackend:
        # Kept before anything is written to it: it is closed if that fails, and asked for its version meanwhile.
        backend = self._opened[name] = opening()
        return backend

    def versions(self) -> set[str | None]:
        """Return the versions of the open backends: one, unless a process was killed between two writes."""
        return {self._version_of(backend.version()) for backend in self._opened.values()}

    def _opening(self, name: str, number: int, stores: list[str]) -> Callable[[], StoreBackend]:
        directory = self.directory / name / str(number)
        with making_state_directory(directory):
            make_private_directory(directory)
        return partial(self._load, name, directory, stores)

    def _load(self, name: str, directory: Path, stores: Sequence[str]) -> StoreBackend:
        return self.world.backend(registry().load("store backend", name)(directory, stores))

    def _open_backend(self, name: str, stores: list[str], version: str, coverage: Coverage) -> None:
        try:
            self._open_directory(name, self._latest(name), stores, version, coverage)
        except StoreLockedError as error:
            # A process that was stopped while it wrote may keep its lock for ever: its successor uses a new directory.
            _log.warning("task %s: %s; restoring into a new directory", self.task_id, error)
            self._open_directory(name, self._latest(name) + 1, stores, version, coverage)

    def _open_directory(self, name: str, number: int, stores: list[str], version: str, coverage: Coverage) -> None:
        opening = self._opening(name, number, stores)
        reopen = partial(self._reopen, name, opening)
        try:
            self._bring_to(reopen(), reopen, name, version, coverage)
        except BaseException:
            if name in self._opened:
                self._opened.pop(name).close()
            raise
        for old in range(number):
            shutil.rmtree(self.directory / name / str(old), ignore_errors=True)

    def _latest(self, name: str) -> int:
        directory = self.directory / name
        with making_state_directory(directory):
            live = live_directory(directory)
        return 0 if live is None else int(live.name)

    def _bring_to(
        self, backend: StoreBackend, reopen: Callable[[], StoreBackend], name: str, version: str, coverage: Coverage
    ) -> None:
        raw = backend.version()
        at = found = raw if backend.trusted() else None
        named = None if found is None else _once_filled(found)
        have = self._version_of(named)
        prefix = self._prefix(name, coverage)
        wanted = named if named is not None and have == version else f"{prefix}{version}"
        missing = frozenset[str]() if have is None else coverage.missing(name, have)
        refilled = [store for store in self._names[name] if store in self.refills]
        to_fill = refilled if named != found or self._lacks_filled else [each for each in refilled if each in missing]
        missing = missing.difference(refilled)
        # Nobody else gives a copy these names, so that two processes that restore the same copy at once never write to
        # each other's. No chain contains the first one: after a crash the copy is restored afresh.
        token = self.world.token(4)
        on_the_way, unfilled = f"{RESTORING}{version}:{token}", f"{_UNFILLED}{token}:"
        if have != version and [have, version] != self._transition():
            plan = self._plan(version, have) if coverage.had_changelog else Restore(None, iter(()))
            if (now := backend.version()) != raw:
                raise StaleStoreError(
                    f"{self.where}: another process has restored or written its local {name} state, which was at "
                    f"{raw} and is at {now}: open the task again"
                )
            if plan.base is None and raw is not None:
                _log.warning(
                    "task %s: local %s state is %s, not on the way to %s: rebuilding it from the changelog",
                    self.task_id, name, found or "not to be trusted after a crash of the machine", version,
                )  # fmt: skip
                backend.destroy()
                backend = reopen()
            if plan.base is None:
                at, missing = None, frozenset()
            to_fill = refilled
            stores = coverage.in_history.intersection(self._names[name])
            with self.restoring.of(self._names[name], version, plan.work):
                for changes, reached in plan.steps:
                    # The name of a version says which stores a copy has: it gets none before it has all.
                    is_part = missing or reached.startswith(RESTORING)
                    following = on_the_way if is_part else f"{unfilled if to_fill else ''}{prefix}{reached}"
                    backend.write(own := self._restored(changes, stores), at, following)
                    self._note(own)
                    at = following
        if missing:
            backend.write({}, at, on_the_way)
            self._fill(backend, missing, on_the_way, version, coverage)
            at = on_the_way
        if to_fill:
            self._refill(backend, to_fill, at, f"{unfilled}{wanted}")
            at = f"{unfilled}{wanted}"
        if at != wanted:
            backend.write({}, at, wanted)
        self._kept_as[name] = wanted

    def _prefix(self, name: str, coverage: Coverage) -> str:
        """Return the prefix of the version in the name of a copy that was restored for the present layout."""
        return self._partial if name in coverage.left_out else ""

    def _version_of(self, name: str | None) -> str | None:
        """Return the version whose content of the present stores a copy of this name has; other names as they are."""
        return None if name is None else name.removeprefix(self._partial)

    def _refill(self, backend: StoreBackend, stores: Sequence[str], at: str | None, unfilled: str) -> None:
        """Fill read-only stores from their topics; meanwhile the copy is `unfilled`."""
        backend.write({}, at, unfilled)
        self._empty(backend, stores, unfilled)
        for store in stores:
            for changes in self.refills[store](backend):
                backend.write(changes, unfilled, unfilled)
                self.opening.pause()

    def _empty(self, backend: StoreBackend, stores: Iterable[str], at: str) -> None:
        self._delete_rows(backend, (table for store in stores for table in self.layouts.now[store].tables(store)), at)

    def _delete_rows(self, backend: StoreBackend, tables: Iterable[str], at: str) -> None:
        for table in tables:
            after = b""
            while portion := next(in_portions(backend.range(table, after)), None):
                backend.write({table: [(key, None) for key, _ in portion]}, at, at)
                self.opening.pause()
                after = portion[-1][0] + b"\x00"

    def _plan(self, version: str, have: str | None) -> Restore:
        if self.changelog is None:
            raise IncompatibleStateError(
                f"{self.where}: the commit names state version {version}, but the task keeps no changelog"
            )
        return self.changelog.restore(version, have)

    def _restored(self, changes: Changes, stores: frozenset[str]) -> Changes:
        return self._with_indexes({store: rows for store, rows in changes.items() if store in stores})

    def _note(self, written: Changes) -> None:
        """Count a portion that was restored, and let others work."""
        self.restoring.add(sum(len(rows) for store, rows in written.items() if store in self.layouts.now))
        self.opening.pause()

    def _with_indexes(self, changes: Mapping[str, Sequence[Change]]) -> Changes:
        """Return restored rows, with a mark that deletes the build state of their stores' indexes."""
        made = dict(changes)
        for store, rows in changes.items():
            if rows and self.layouts.now[store].has_index:
                made[index_name(store)] = [(b"", None)]
        return made

    def _fill(self, backend: StoreBackend, stores: frozenset[str], at: str, version: str, coverage: Coverage) -> None:
        """Replace the content of `stores`, which the copy lacks or has from another time, by that of `version`.

        Meanwhile the copy is at `at`, a name that no chain contains: after a crash it is restored afresh.
        """
        self._empty(backend, stores, at)
        wanted = stores & coverage.in_history
        if wanted:
            plan = self._plan(version, None)
            with self.restoring.of(sorted(wanted), version, plan.work):
                for changes, _ in plan.steps:
                    backend.write(own := self._restored(changes, wanted), at, at)
                    self._note(own)

    # ------------------------------------------------------------------ another layout

    def _take_over(self, version: str, coverage: Coverage) -> None:
        """Open backends that no store uses any more, and copy unlogged content to the new ones."""
        for name, stores in coverage.gone.items():
            directory = self.directory / name / str(self._latest(name))
            if name not in self._names and directory.is_dir():
                self._replaced[name] = self._load(name, directory, stores)
        for store, other in coverage.moved.items():
            if store in self.refills:
                continue
            source = self._opened.get(other) or self._replaced.get(other)
            if source is not None:
                backend, kept = self.of(store), self._kept_as.get(self.layouts.now[store].backend, version)
                for portion in in_portions(source.range(store)):
                    backend.write(self._with_indexes({store: portion}), kept, kept)
                    self.opening.pause()

    def begin_transition(self, previous: str, version: str) -> None:
        """Record that a local copy at `previous` also has the content of `version`, the next commit's.

        The changelog cannot say so: it has no way from a version of the old layout to one of the new layout.
        """
        if self._opened:
            with making_state_directory(self.directory):
                write_private_text(self._transition_file, f"{previous} {version}")

    def end_transition(self, gone: Mapping[str, list[str]], version: str) -> None:
        """Delete this machine's content of stores and indexes, by backend, that the present layout does not have."""
        # The version is the first of the present layout, or a replica has one of an earlier layout.
        coverage = Coverage(self.layouts, version)
        for name, backend in self._replaced.items():
            backend.destroy()
            shutil.rmtree(self.directory / name, ignore_errors=True)
        self._replaced.clear()
        for name, tables in gone.items():
            if name in self._opened:
                kept = self._kept_as.get(name, version)
                self._opened[name].write({}, kept, wanted := f"{self._prefix(name, coverage)}{version}")
                self._delete_rows(self._opened[name], tables, wanted)
        self._transition_file.unlink(missing_ok=True)

    @property
    def _transition_file(self) -> Path:
        return self.directory / "settling"

    def _transition(self) -> list[str]:
        with making_state_directory(self.directory):
            try:
                return self._transition_file.read_text().split()
            except FileNotFoundError:
                return []

    # ------------------------------------------------------------------ in use

    def of(self, store: str) -> StoreBackend:
        """Return the backend that keeps a store."""
        return self._opened[self.layouts.now[store].backend]

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        """Write the changes of one commit; every backend goes from `previous` to `version`."""
        for name, stores in self._names.items():
            own = {store: changes[store] for store in stores if store in changes}
            self._opened[name].write(own, self._kept_as.pop(name, previous), version)

    def are_at(self, version: str) -> bool:
        """Return whether every backend is still at `version`: no other process has written."""
        return all(self._version_of(backend.version()) == version for backend in self._opened.values())

    def views(self, stores: Sequence[str]) -> dict[str, StoreView] | None:
        """Return a view of each store's backend; None if a backend has no views."""
        views: dict[str, StoreView] = {}
        with ExitStack() as stack:
            for name, own in self._names.items():
                if wanted := [store for store in stores if store in own]:
                    view = self._opened[name].view(wanted)
                    if view is None:
                        return None
                    stack.callback(view.close)
                    views.update(dict.fromkeys(wanted, view))
            stack.pop_all()
        return {store: views[store] for store in stores}

    def release(self) -> None:
        """Release pinned resources until the next batch."""
        for backend in self._opened.values():
            backend.release()

    def destroy(self) -> None:
        """Delete this machine's copy."""
        for backend in self._opened.values():
            backend.destroy()

    def close(self) -> None:
        """Close every backend, including ones that the present layout does not use."""
        for backend in (*self._opened.values(), *self._replaced.values()):
            backend.close()

    def end_use(self) -> None:
        """Let other processes remove the directory once it is unused for long; idempotent."""
        if self._use is not None:
            self._use.close()


def _once_filled(name: str) -> str:
    """Return the name that a copy gets once its read-only stores are filled."""
    return name.split(":", 2)[2] if name.startswith(_UNFILLED) else name


class Coverage:
    """Compares the layout that a version's name says with the program's present layout.

    A version without a known layout counts as of the present one; tasks open none of an unknown layout. `lacking`:
    stores whose content the copies lack anyway.
    """

    def __init__(self, layouts: Layouts, version: str, lacking: frozenset[str] = frozenset()) -> None:
        self._layouts = layouts
        self._lacking = lacking
        self._version = version
        known = layouts.of_version(version)
        self._now = layouts.now
        self._was = layouts.now if known is None else known
        self.is_settled = known is None or id_of_version(version) == layouts.id
        """Whether the version was written in the present layout."""

    def _before(self, store: str) -> KeptStore | None:
        """Return the store's description in the version's layout; None if the version does not have it."""
        was, now = self._was.get(store), self._now.get(store)
        return was if was is not None and now is not None and was.generation == now.generation else None

    @property
    def in_history(self) -> frozenset[str]:
        """The stores that are restored from the changelog."""
        return frozenset(
            store
            for store, now in self._now.items()
            if now.logged and (was := self._before(store)) is not None and was.logged
        )

    @property
    def left_out(self) -> frozenset[str]:
        """The backends on which a copy restored for the present layout lacks rows that the version has in its own."""
        restored = self.in_history
        return frozenset(
            was.backend
            for store, was in self._was.items()
            if was.logged and (store not in restored or self._now[store].backend != was.backend)
        )

    @property
    def begun(self) -> frozenset[str]:
        """The logged stores that are not in the changelog yet."""
        return frozenset(store for store, now in self._now.items() if now.logged) - self.in_history

    @property
    def needs_new_history(self) -> bool:
        """Whether the changelog has entries of stores that have left it, or lacks entries of stores that joined it."""
        logged = {store for store, was in self._was.items() if was.logged}
        if logged - self.in_history or (not logged and self.begun):
            return True
        return any(self._before(store) is not None for store in self.begun)

    @property
    def had_changelog(self) -> bool:
        """Whether the version is in the changelog: the versions of a task without stores are not."""
        return bool(self._was)

    @property
    def gone(self) -> Mapping[str, list[str]]:
        """The stores and their indexes, by backend, whose content there is not needed any more."""
        found: dict[str, list[str]] = {}
        for store, was in self._was.items():
            before = self._before(store)
            if (before is None and store not in self._now) or (
                before is not None and before.backend != self._now[store].backend
            ):
                found.setdefault(was.backend, []).extend(was.tables(store))
        return found

    @property
    def moved(self) -> Mapping[str, str]:
        """The stores outside the changelog that have changed their backend, with the name of the earlier one."""
        return {
            store: was.backend
            for store, now in self._now.items()
            if store not in self.in_history and (was := self._before(store)) is not None and was.backend != now.backend
        }

    def missing(self, backend: str, have: str) -> frozenset[str]:
        """Return the stores of `backend` whose content a copy at version `have` does not have.

        That is also so where it has the content of an earlier store of the same name.
        """
        stores = frozenset(store for store, now in self._now.items() if now.backend == backend)
        copy = self._layouts.of_version(have)
        if copy is None:
            known = id_of_version(have) in (None, id_of_version(self._version))
            return stores & self._lacking if known else stores
        return frozenset(
            store for store in stores if store in self._lacking or not self._is_in(copy.get(store), store, backend)
        )

    def _is_in(self, copied: KeptStore | None, store: str, backend: str) -> bool:
        return (
            copied is not None
            and copied.backend == backend
            and copied.generation == self._now[store].generation
            and (copied.logged or store not in self.in_history)
        )
