"""Faults put into the product, of its past and of kinds that it must not have; the simulator has to find each."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.changelogs.storage import LocalStorage
from penstock.plugins.engine.program import reset
from penstock.plugins.engine.program.committed import CommittedPartitions
from penstock.plugins.engine.task.commit import PendingCommit, TaskCommits
from penstock.plugins.engine.task.epoch import EpochCheck
from penstock.plugins.engine.task.local_state.backends import Backends, Coverage
from penstock.plugins.engine.task.local_state.task_state import ChangelogUpkeep, TaskState
from penstock.plugins.engine.task.logged_task import LoggedTask
from penstock.plugins.engine.task.loop.continuous_worker import ContinuousWorker, Upkeep
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.logs import memory
from penstock.plugins.state.copies.replica import LogHistory, Replica
from penstock.plugins.state.transfer import changelog_move
from penstock.plugins.testing.simulation.faults import by_code
from penstock.program.layouts import Layouts
from penstock.task.batch_context import BatchCalls
from penstock.task.saved_schedules import SavedSchedules
from penstock.task.task import Task


@dataclass(frozen=True)
class Change:
    """`old` in the source of a method, a property or a function of a module is replaced by `new`."""

    owner: Any
    method: str
    old: str
    new: str


@dataclass(frozen=True)
class Planted:
    """A fault: its changes, and the program of `programs.CONTRACTS` in whose histories it shows."""

    program: str
    changes: tuple[Change, ...]


_DELTA_AFTER_COMMIT = (
    Change(
        PendingCommit,
        "write",
        "outputs = outputs + self.state.append_delta(self.delta, self.commit.version, self.kept)",
        "pass",
    ),
    Change(
        PendingCommit,
        "write",
        "self.committer.commit(self.commit, outputs)",
        "self.committer.commit(self.commit, outputs); self.delta is None or self.state.append_delta("
        "self.delta, self.commit.version, self.kept)",
    ),
)
_IN_A_DIRECTORY = "counts, changelog in a directory"

_LONG_CHAINS = "counts, long chains"

PLANTED = {
    "a torn snapshot is taken for a whole one": Planted(
        _LONG_CHAINS,
        (
            Change(LocalStorage, "write", 'f"{name}.{self.world.token(4)}{TEMPORARY}"', "name"),
            Change(LocalStorage, "write", "files.remove(aside)", "pass"),
            Change(DirectoryChangelog, "_damage", "check_tail(self._storage.tail(name, TAIL_BYTES))", "pass"),
        ),
    ),
    "a file is named before it is synced": Planted(
        _IN_A_DIRECTORY, (Change(LocalStorage, "write", "file.sync()", "pass"),)
    ),
    "the name of a file is not synced": Planted(
        _IN_A_DIRECTORY, (Change(LocalStorage, "write", "files.sync_directory(self.location)", "pass"),)
    ),
    "a delta is appended without a sync": Planted(
        _IN_A_DIRECTORY, (Change(LocalStorage, "append", "file.sync(data_only=True)", "pass"),)
    ),
    "the directory of a changelog is not synced": Planted(
        _IN_A_DIRECTORY, (Change(LocalStorage, "_make", "files.sync_directory(above)", "pass"),)
    ),
    "a delta is written to a directory after the commit": Planted(_IN_A_DIRECTORY, _DELTA_AFTER_COMMIT),
    "a task works on while its commit is written": Planted(
        "reminders",
        (
            Change(TaskLoop, "_work", "if task.rests or not task.is_open:", "if False:"),
            Change(ContinuousWorker, "work", "assert not self.rests", "assert True"),
        ),
    ),
    "a delta is written after the commit": Planted("counts, changelog beside the log", _DELTA_AFTER_COMMIT),
    "the outcome of a commit is guessed": Planted(
        "counts",
        (
            Change(
                PendingCommit,
                "write",
                "self.committer.commit(self.commit, outputs)",
                "import contextlib\n    with contextlib.suppress(Exception):\n"
                "        self.committer.commit(self.commit, outputs)",
            ),
        ),
    ),
    "a cache is flushed after its commit": Planted(
        "regrouped",
        (
            Change(TaskCommits, "take", "    state.flush()\n", ""),
            Change(
                TaskCommits, "take", "changes = state.changes()\n", "changes = state.changes()\n    state.flush()\n"
            ),
        ),
    ),
    "a commit leaves records in a batch": Planted(
        "stream times behind batches",
        (
            Change(
                Task,
                "_forward_held",
                "self._let_go()\n    self._caches.flush()\n    while self._let_go():",
                "self._caches.flush()\n    while False:",
            ),
        ),
    ),
    "what a failed batch has put stays": Planted(
        "counts in batches that fail",
        (
            Change(
                BatchCalls,
                "results",
                "self._failures.batch(self.name, error)",
                "for each in held: yield from self.results([each])\n            if len(held) > 1: return",
            ),
        ),
    ),
    "a commit counts though another process has the task": Planted(
        "counts", (Change(memory._MemoryCommitter, "commit", "if not self.is_current():", "if False:"),)
    ),
    "an internal topic is purged further than its task has read": Planted(
        "regrouped", (Change(LoggedTask, "_report", "purgeable[each] for each", "purgeable[each] + 1 for each"),)
    ),
    "an error of a zombie that prepares a task is not explained": Planted(
        "counts", (Change(LoggedTask, "prepare", "error = self.cause_of(raised)", "error = raised"),)
    ),
    "a zombie that prepares a task finds that the log lost its commit": Planted(
        "counts, changelog beside the log",
        (Change(LoggedTask, "cause_of", "_MAY_BE_OF_SUCCESSOR", "ChangelogError"),),
    ),
    "a zombie cleans what its successor needs": Planted(
        _LONG_CHAINS,
        (
            Change(ChangelogUpkeep, "clean", "and is_current()", ""),
            Change(DirectoryChangelog, "clean", "if not is_current():", "if False:"),
            Change(
                DirectoryChangelog,
                "clean",
                "and (is_left_over(file.name, version) or segments.ends_by(version, file.name))",
                "",
            ),
        ),
    ),
    "a snapshot has the name of a later version": Planted(
        _LONG_CHAINS,
        (Change(Upkeep, "_write", "version = content.commit.version", "version = self._state.version"),),
    ),
    "two processes give a version the same name": Planted(
        _IN_A_DIRECTORY, (Change(TaskState, "new_version", "self._world.token", "lambda size: '00000000'"),)
    ),
    "nobody notices that the log has lost positions": Planted(
        _IN_A_DIRECTORY, (Change(CommittedPartitions, "check", "if lost:", "if False:"),)
    ),
    "a task works on that its own commit has closed": Planted(
        "reminders, slowly", (Change(TaskLoop, "_work", "if task.rests or not task.is_open:", "if task.rests:"),)
    ),
    "a schedule that was made outside init is not saved": Planted(
        "schedules", (Change(SavedSchedules, "end", 'if "/" in text:', "if False:"),)
    ),
    "stream time is saved as the time of the last record": Planted(
        "stream times",
        (Change(Task, "_times_and_values", '"stream": self.stream_time', '"stream": self.progress.last_timestamp'),),
    ),
    "the names of versions drift": Planted(
        "counts, another program",
        (Change(Layouts, "id", "layout_id(self.now)", 'f"{id(self):016x}"[-8:]'),),
    ),
    "the default of a serde changes": Planted(
        "counts, another program",
        (
            Change(
                TaskState,
                "_context",
                "self._settings.state_serde,",
                '"json" if len(self._layouts.now) == 1 else "pickle",',
            ),
        ),
    ),
    "a store that left the changelog and came back has what it had before": Planted(
        "counts, a store in the changelog and not, changelog in a directory",
        (
            Change(Coverage, "needs_new_history", "return True", "return False"),
            Change(
                Coverage,
                "needs_new_history",
                "return any(self._before(store) is not None for store in self.begun)",
                "return False",
            ),
        ),
    ),
    "a copy that lacks a store looks whole": Planted(
        "counts, a store in the changelog and not, changelog in a directory",
        (Change(Backends, "_prefix", 'self._partial if name in coverage.left_out else ""', '""'),),
    ),
    "a copy has the name of its version before its read-only stores are filled": Planted(
        "counts, read-only store", (Change(Backends, "_bring_to", "{unfilled if to_fill else ''}", ""),)
    ),
    "a reset deletes the state before it sets the positions": Planted(
        _IN_A_DIRECTORY,
        (
            Change(reset, "reset", "    log.set_positions(application.id, positions, [*own, *passed])\n", ""),
            Change(
                reset,
                "reset",
                "            changelog.destroy()\n",
                "            changelog.destroy()\n    log.set_positions(application.id, positions, [*own, *passed])\n",
            ),
        ),
    ),
    "a reset leaves the positions of internal topics": Planted(
        "regrouped", (Change(reset, "reset", "[*own, *passed])", "passed)"),)
    ),
    "a changelog that is moved back has what it had before": Planted(
        _IN_A_DIRECTORY,
        (Change(changelog_move, "move_changelog", "reaches(target, commit.version)", "list(target.proven())"),),
    ),
    "a task is opened in an earlier epoch": Planted(
        "counts, a store in the changelog and not, changelog in a directory",
        (Change(EpochCheck, "check", "if found != application.epoch:", "if False:"),),
    ),
    "a changelog that is moved again is not synced": Planted(
        _IN_A_DIRECTORY, (Change(changelog_move, "move_changelog", "target.sync()  #", "pass  #"),)
    ),
    "a replica shows what was not committed": Planted(
        "counts, with replicas, changelog topic:",
        (Change(LogHistory, "_steps", "if self._is_last(target):", "if True:"),),
    ),
    "a replica takes for damage what its task has deleted": Planted(
        "counts, with replicas, long chains",
        (Change(Replica, "_bring_to", "if not self._is_last(commit.version):", "if False:"),),
    ),
    "a replica does not follow another program": Planted(
        "counts, with replicas, changelog directory:",
        (Change(Replica, "_follow_program", "if is_known and", "if True or"),),
    ),
    "a replica shows a version while it is restored": Planted(
        "counts, with replicas, changelog directory:",
        (Change(Replica, "_found_version", "if found is not None and is_version(found)", "if found is not None"),),
    ),
    "a replica has a copy open that was destroyed": Planted(
        "counts, with replicas, changelog topic:",
        (Change(Backends, "_reopen", "backend = self._opened[name] = opening()", "backend = opening()"),),
    ),
}


def _function(given: Any) -> Any:
    if isinstance(given, property):
        return given.fget
    return given.func if isinstance(given, cached_property) else given


@contextmanager
def planted(fault: Planted) -> Iterator[None]:
    """Put a fault into the product, for a while."""
    before = {(each.owner, each.method): vars(each.owner)[each.method] for each in fault.changes}
    try:
        for owner, method in before:
            source = textwrap.dedent(inspect.getsource(_function(before[owner, method])))
            for each in fault.changes:
                if (each.owner, each.method) == (owner, method):
                    assert source.count(each.old) == 1, f"{owner.__name__}.{method} has no longer: {each.old}"
                    source = source.replace(each.old, each.new)
            found: dict[str, Any] = {}
            names = _function(before[owner, method]).__globals__
            exec("from __future__ import annotations\n" + source, names, found)
            setattr(owner, method, found[method])
            if isinstance(found[method], cached_property):
                found[method].__set_name__(owner, method)
        by_code.cache_clear()
        yield
    finally:
        for (owner, method), function in before.items():
            setattr(owner, method, function)
        by_code.cache_clear()
