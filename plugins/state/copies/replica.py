"""Replica: a copy of one task's stores at a committed version, kept up to date without the task's help."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from penstock import (
    RESTORING,
    Application,
    ChangelogError,
    Commit,
    ConfigError,
    IncompatibleStateError,
    Log,
    LogChangelog,
    Restore,
    StoreBackend,
    TaskChangelog,
    UnknownTopicError,
    World,
    is_version,
    version_counter,
)
from penstock.plugins.engine.program.committed import has_lost_commit
from penstock.plugins.engine.program.saved_program import SavedTask, saved_tasks, shown_location
from penstock.plugins.engine.task.local_state.backends import OF_REPLICA, Backends, Coverage
from penstock.plugins.engine.task.local_state.directories import SoleUse
from penstock.plugins.engine.task.local_state.restoring import Stretch
from penstock.plugins.engine.task.locations import making_state_directory, open_changelog
from penstock.plugins.engine.task.refusals import NO_COMMIT
from penstock.program.layouts import Layouts, id_of_version
from penstock.settings.secret import HIDDEN
from penstock.store import Changes
from penstock.store.kept_store import Layout
from penstock.support.names import did_you_mean
from penstock.support.private_files import make_private_directory, write_private_text

from .last_seen import LastSeen
from .state_reader import Portion, Row

_log = logging.getLogger("penstock.replicas")

_MOST_PASSES = 100
"""So often one call of `catch_up` reads on, because the task has committed meanwhile, if nothing else is said."""
_LOOK_SECONDS = 10.0
"""Seconds between two looks at the note of the program that ran last."""


class Replica:
    """A copy of the logged stores of one task in `directory`, a directory for this task alone.

    It reads the task's commits and its changelog as a task that is restored does. It takes no fence and writes neither
    log nor changelog: the task does not notice it. Its content is that of one committed version, `version`, or it shows
    none. It continues where it was after a restart of its process. `application` gives the id and the settings; which
    stores the task has, the log says. `stores`: only these. It waits up to `lock_seconds` for another user of the
    directory. `last_seen`: what objects before it in this process have seen of the task.

    One process has a directory open, and one thread calls all methods but those of `opening`. Raises ConfigError for a
    task or a store that the application did not save, StoreError for a directory that cannot be written or is in use,
    and LogError.
    """

    def __init__(
        self,
        application: Application,
        task: str,
        log: Log,
        directory: Path,
        *,
        stores: Collection[str] | None = None,
        world: World | None = None,
        lock_seconds: float = 10.0,
        last_seen: LastSeen | None = None,
    ) -> None:
        self.task = task
        self.opening = Stretch(f"the replica of task {task}")
        """The work of `catch_up`: any thread may watch and end it."""
        self.commit: Commit | None = None
        """The last commit of `version` that `catch_up` has seen; None before the first one."""
        self._application = application
        self._log = log
        self._directory = directory
        self._chosen = None if stores is None else frozenset(stores)
        self._world = world or World()
        self._last_seen = last_seen or LastSeen(self._world)
        self._where = f"application {application.id!r}, replica of task {task}"
        self._backends: Backends | None = None
        self._restored = 0
        self._place: str | None = None
        self._looked_at = 0.0
        self._layouts = Layouts({})
        self._lacking = frozenset[str]()
        self._held = SoleUse(directory, self._world, lock_seconds)
        try:
            self._saved = self._look()
            self._open()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ what it has

    @property
    def version(self) -> str | None:
        """The committed version whose content the replica has; None before the first one, and while it is rebuilt."""
        return None if self._lacking else self._found_version

    @property
    def _found_version(self) -> str | None:
        """The committed version of the copy on this machine, which may lack stores."""
        versions = set() if self._backends is None else self._backends.versions()
        found = versions.pop() if len(versions) == 1 else None
        return found if found is not None and is_version(found) else None

    @property
    def saved(self) -> SavedTask:
        """The task's saved description at the last look of the replica."""
        return self._saved

    def look_again(self) -> None:
        """Let the next `catch_up` look at the note of the program: it is known to be another one."""
        self._looked_at = float("-inf")

    @property
    def layout(self) -> Layout:
        """The stores that the replica has."""
        return self._layouts.now

    def backend(self, store: str) -> StoreBackend:
        """Return the backend of a store, to be read until the next `catch_up`. Raises ConfigError if there is none."""
        if self._backends is None or store not in self.layout:
            advice = did_you_mean(store, self.layout) or f"it has: {', '.join(sorted(self.layout)) or 'none'}"
            raise ConfigError(f"{self._where}: it has no store {store!r}; {advice}")
        return self._backends.of(store)

    def rows(self) -> Iterator[Row]:
        """Yield all rows by store and key, until the next `catch_up`."""
        return ((store, key, value) for store in sorted(self.layout) for key, value in self.backend(store).range(store))

    def behind(self) -> int:
        """Return the lag behind the task's last commit, in versions: 0 if none, and before the first commit."""
        last, version = self._last_commit(), self.version
        if last is None:
            return 0
        return version_counter(last.version) - (-1 if version is None else version_counter(version))

    @property
    def restored(self) -> int:
        """How many entries this object has written to the copy."""
        return self._restored + (0 if self._backends is None else self._backends.restoring.entries)

    def is_wanted(self) -> bool:
        """Return whether a task waits to use the directory as its local state, or does: close this object then."""
        return self._held.is_wanted()

    # ------------------------------------------------------------------ following

    def catch_up(self, between: Callable[[], None] = lambda: None, *, passes: int = _MOST_PASSES) -> bool:
        """Bring the copy to the task's last commit; return False if the task commits too fast: call it again.

        Without a commit it is True, and the copy is empty. `between` is called after each portion, and may wait.
        `passes`: how often it reads on because the task has committed meanwhile. Raises ChangelogError that names what
        is damaged, StaleStoreError after `opening.end()`, StoreError when the disk is full, IncompatibleStateError, and
        LogError; the replica may be used afterwards.
        """
        self.opening.begin(self._world.seconds())
        for _ in range(passes):
            commit = self._last_commit()
            self._follow_program(commit)
            if commit is None:
                found, saved = self._found_version, self._saved
                if found is not None or has_lost_commit(
                    self._log, self._application.id, saved.identity, self.task, saved.partitions
                ):
                    at = "" if found is None else f", at version {found}"
                    raise IncompatibleStateError(f"{self._where}{at}: the log has no commit of the task: {NO_COMMIT}")
                return True
            if self.version != commit.version and not self._bring_to(commit, between):
                continue
            self.commit = commit
            return True
        return False

    def bring_to(self, commit: Commit) -> bool:
        """Bring the copy to a commit of the task; return False if later ones have made that impossible.

        A changelog in a directory leads to an earlier commit for a while; one in topics only to the last. Raises as
        `catch_up`.
        """
        self.opening.begin(self._world.seconds())
        self._follow_program(commit)
        if self.version != commit.version and not self._bring_to(commit, lambda: None):
            return False
        self.commit = commit
        return True

    def _bring_to(self, commit: Commit, between: Callable[[], None]) -> bool:
        """Return False if the task has committed meanwhile."""
        backends = self._backends
        assert backends is not None
        backends.opening.between = lambda: self._pause(between)
        try:
            backends.bring_to(commit.version, Coverage(self._layouts, commit.version, self._lacking))
        except OvertakenError:
            return False
        except ChangelogError as error:
            # What an earlier commit needed, the task may have deleted.
            if not self._is_last(commit.version):
                return False
            if (explained := self._explained(error)) is error:
                raise  # with its own cause
            raise explained from error
        if self._lacking:
            self._lacking = frozenset()
            self._write_note()
        return True

    def _pause(self, between: Callable[[], None]) -> None:
        self.opening.between = between
        self.opening.pause()

    def _explained(self, error: ChangelogError) -> ChangelogError:
        noted, own = self._saved.changelog, shown_location(self._application.settings)
        if noted is None or noted == own:
            return error
        return ChangelogError(
            f"{error}. The application noted its changelog as {noted!r}, and the replica reads {self._place or own!r}: "
            "give it the same setting 'changelog'"
        )

    def _last_commit(self) -> Commit | None:
        def ask() -> Commit | None:
            return self._log.last_commit(self._application.id, self.task, self._saved.partitions)

        try:
            return self._last_seen.ask(ask)
        except UnknownTopicError:
            self._follow_program(None)
            return self._last_seen.ask(ask)

    def _is_last(self, version: str) -> bool:
        commit = self._last_commit()
        return commit is not None and commit.version == version

    def _follow_program(self, commit: Commit | None) -> None:
        """Open the copy as the program that ran last keeps its stores, if that is another one now."""
        layout = None if commit is None else id_of_version(commit.version)
        is_known = layout == self._saved.layouts.id
        if is_known and self._world.seconds() - self._looked_at < _LOOK_SECONDS:
            return
        before, self._saved = self._saved, self._look()
        if self._saved != before or self._backends is None:
            self._close_backends()
            self._open()

    def _look(self) -> SavedTask:
        self._looked_at = self._world.seconds()
        tasks = saved_tasks(self._application.id, self._log)
        found = tasks.get(self.task)
        if found is None:
            advice = did_you_mean(self.task, tasks) or f"there are: {', '.join(tasks) or 'none'}"
            raise ConfigError(
                f"application {self._application.id!r} has no task {self.task!r} with stores in the log "
                f"{self._application.settings.shown('log')}; {advice}"
            )
        for store in self._chosen or ():
            kept = found.layouts.now.get(store)
            if kept is None or not kept.logged:
                known = [name for name, each in found.layouts.now.items() if each.logged]
                raise ConfigError(
                    f"{self._where}: "
                    + (
                        f"store {store!r} is not in the changelog (logged=False, or it is filled from a topic)"
                        if kept is not None
                        else f"the task has no store {store!r}"
                    )
                    + f"; {did_you_mean(store, known) or 'it follows: ' + (', '.join(sorted(known)) or 'none')}"
                )
        return found

    # ------------------------------------------------------------------ opening and closing

    def _open(self) -> None:
        saved, settings = self._saved, self._application.settings
        before = self._place
        # The setting may name the place otherwise than the application does, on another host. A move is followed.
        if before is not None and saved.changelog not in (None, before):
            if HIDDEN in str(saved.changelog):
                raise IncompatibleStateError(
                    f"{self._where}: the application's changelog has moved to {saved.changelog!r}, whose secrets are "
                    "not noted in the log: give the replica the same setting 'changelog'"
                )
            _log.info("%s: the changelog has moved to %s", self._where, saved.changelog)
            settings = replace(settings, changelog=str(saved.changelog))
            self._application = self._application.with_settings(changelog=settings.changelog)
        self._place = saved.changelog
        self._layouts = self._own(saved.layouts)
        every = {name: kept for name, kept in saved.layouts.now.items() if kept.logged}
        found = open_changelog(settings, self._application.id, self.task, self._log, every)
        found.world, found.beside_writer = self._world, True
        changelog: TaskChangelog = found
        if isinstance(found, LogChangelog):
            changelog = LogHistory(found, self._is_last, self._last_seen)
        self._backends = Backends(self._directory, self._layouts, changelog, self._where, self.task, self._world)
        is_ours = self._is_ours()
        self._backends.open_as_found(Coverage(self._layouts, ""))
        self._lacking = self._noted_lacking() if is_ours else frozenset()
        version = self._found_version
        if not is_ours:
            self._backends.destroy()  # before the note says that the copy is of this incarnation
            self._backends.open_as_found(Coverage(self._layouts, ""))
        self._write_note()  # before it loses the stores that it is not kept with
        if is_ours and version is not None and (gone := (coverage := Coverage(self._layouts, version)).gone):
            self._backends.close()
            self._backends.open_as_found(coverage)
            self._backends.end_transition(gone, version)

    @property
    def _note(self) -> Path:
        """Has the incarnation, and as JSON the stores with which the copy is kept; null: all of the task."""
        return self._directory / OF_REPLICA

    def _write_note(self) -> None:
        is_whole = self._chosen is None and not self._lacking
        kept = None if is_whole else sorted(self._layouts.now.keys() - self._lacking)
        write_private_text(self._note, f"{self._saved.identity}\n{json.dumps(kept)}")

    def _noted_lacking(self) -> frozenset[str]:
        """Return the stores that the copy lacks: it has no content of them, or an earlier store's."""
        kept = self._note.read_text().partition("\n")[2]
        if not kept:  # an earlier penstock did not note them
            return frozenset() if self._chosen is None else frozenset(self._layouts.now)
        return frozenset() if kept == "null" else frozenset(self._layouts.now).difference(json.loads(kept))

    def _is_ours(self) -> bool:
        """Return whether the copy is of this incarnation; delete those on backends that no store uses any more."""
        used = {kept.backend for kept in self._saved.layouts.now.values()}
        with making_state_directory(self._directory):
            make_private_directory(self._directory)
            for path in self._directory.iterdir():
                if path.is_dir() and path.name not in used:
                    shutil.rmtree(path)
            if not self._note.exists():
                # What a task of an earlier incarnation has left here is no version of a task without a commit.
                if self._log.last_commit(self._application.id, self.task, self._saved.partitions) is None:
                    return False
                write_private_text(self._note, f"{self._saved.identity}\nnull")
            return self._note.read_text().partition("\n")[0] == self._saved.identity

    def _own(self, layouts: Layouts) -> Layouts:
        """Return the layouts with the stores of the replica alone, under the ids that are in the versions' names."""

        def own(layout: Layout) -> Layout:
            return {
                name: kept
                for name, kept in layout.items()
                if kept.logged and (self._chosen is None or name in self._chosen)
            }

        every: Mapping[str, Layout] = {**layouts.earlier, layouts.id: layouts.now}
        return Layouts(own(layouts.now), {name: own(layout) for name, layout in every.items()})

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything; idempotent. The copy stays, for the next object with its directory."""
        self._close_backends()
        self._held.close()

    def _close_backends(self) -> None:
        self._restored, backends, self._backends = self.restored, self._backends, None
        if backends is not None:
            backends.close()


_BEHIND = "behind:"
"""Prefix of the name of a copy that has everything up to a version, and some later changes."""
_PORTION_BYTES = 16 * 1024 * 1024
"""Maximum bytes of changes in memory, before they are written to the copy."""


class OvertakenError(Exception):
    """The task has committed while its changelog was read: read on to that commit."""


class _Kept(NamedTuple):
    """Rows that a copy at `have` lacks to be at `reached` or later; they were read, and are not written."""

    have: str | None
    reached: str
    portion: Portion


class LogHistory(TaskChangelog):
    """Brings copies to a version of a task that may commit meanwhile. A task reads its own topics behind its fence.

    The log compacts the topics at any time. So a copy is at `target` only if `is_last` says that the task has made no
    later commit once everything was read. Otherwise `steps` raises OvertakenError, and the next `restore` reads on from
    there; what was read waits in memory. What is too much for that is written, and the name of the copy begins with
    `_BEHIND`: it may be read on, and shows no version. `last_seen`: noted wherever the task's last commit is asked for.
    """

    def __init__(self, below: LogChangelog, is_last: Callable[[str], bool], last_seen: LastSeen) -> None:
        below.last_seen = last_seen.seconds_ago
        self._below = below
        self._is_last = is_last
        self._kept: _Kept | None = None

    def restore(self, target: str, have: str | None) -> Restore:
        kept, self._kept = self._kept, None
        known = None if have is None else have.removeprefix(_BEHIND)
        if kept is not None and kept.have == have:
            plan = self._below.restore(target, kept.reached)
            if plan.base is not None:
                return Restore(have, self._steps(plan, target, have, kept.portion), plan.work)
        plan = self._below.restore(target, known)
        base = None if plan.base is None else have
        return Restore(base, self._steps(plan, target, base, Portion(_PORTION_BYTES)), plan.work)

    def _steps(self, plan: Restore, target: str, base: str | None, portion: Portion) -> Iterator[tuple[Changes, str]]:
        on_the_way = f"{RESTORING}{target}" if base is None else f"{_BEHIND}{base.removeprefix(_BEHIND)}"
        has_written = False
        for changes, _ in plan.steps:
            for store, rows in changes.items():
                portion.add(store, rows)
            if portion.is_full:
                yield portion.take(), on_the_way
                has_written = True
        if self._is_last(target):
            yield portion.take(), target
            return
        if has_written:
            yield portion.take(), f"{_BEHIND}{target}"
        else:
            self._kept = _Kept(base, target, portion)
        raise OvertakenError

    def close(self) -> None:
        self._below.close()
