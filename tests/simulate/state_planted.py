"""Faults put into backups, restores and resharding; histories with these have to find each."""

from __future__ import annotations

from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.engine.task.loop.continuous_worker import ContinuousWorker
from penstock.plugins.logs.memory import _MemoryLease
from penstock.plugins.state.transfer.backups.backup import Cuts, _Making
from penstock.plugins.state.transfer.backups.catalog import Catalog
from penstock.plugins.state.transfer.backups.restoring import _Restoring
from penstock.plugins.state.transfer.reshard import resharding
from penstock.task.visits import Visits

from .planted import Change, Planted

_IN_TOPICS, _IN_FILES = (f"passed on, with backups, changelog {place}" for place in ("topic:", "directory:"))
_RESHARDED = "passed on, resharded, changelog topic:"

STATE_PLANTED = {
    "a backup has commits that do not fit each other": Planted(
        _IN_FILES, (Change(Cuts, "_look_for", "before == self._commits() and ", ""),)
    ),
    "a backup overlooks records that are on their way": Planted(
        _IN_FILES, (Change(Cuts, "_look_for", "all(ends[each] == open_ends[each] for each in self.between)", "True"),)
    ),
    "a backup has a state that is later than its positions": Planted(
        _IN_TOPICS, (Change(_Making, "_brought", "if not replica.bring_to(commit):", "if replica.catch_up() is None:"),)
    ),
    "a prune deletes files of a backup that is being made": Planted(
        _IN_FILES,
        (
            Change(DirectoryChangelog, "needless", "if each.modified_ms < before_ms", ""),
            Change(Catalog, "_check_kept", "noted = self.noted()", "return"),
        ),
    ),
    "a restored task reads on where the former topic was": Planted(
        _IN_FILES, (Change(_Restoring, "write", "positions.get(each, at)", "at"),)
    ),
    "how far a visit is does not go with the commit": Planted(
        "visited, changelog topic:", (Change(Visits, "state", "_text(each.at)", '_text(each.at and b"")'),)
    ),
    "a visit that a successor has made is made again": Planted(
        "visited, changelog topic:", (Change(Visits, "_is_left", "or is_over", ""),)
    ),
    "a process that reshards, and was frozen, switches after its successor": Planted(
        _RESHARDED, (Change(_MemoryLease, "put_meta", "self.renew()", "pass"),)
    ),
    "a resharding overlooks records that are on their way": Planted(
        _RESHARDED, (Change(resharding, "_hidden", "if ends[each] != high[each]", "if False"),)
    ),
    "a resharding that is repeated takes other ends": Planted(
        _RESHARDED, (Change(resharding.Resharding, "__init__", "self._noted_ends(noted) or ", ""),)
    ),
    "a resharded application begins at the start of its topics": Planted(
        _RESHARDED,
        (
            Change(resharding.Resharding, "_starts", "if each not in ends", "if True"),
            Change(resharding.Resharding, "_starts", "if each in ends", "if False"),
        ),
    ),
    "windows close before the records that wait": Planted(
        "silent",
        (
            Change(
                ContinuousWorker,
                "work",
                "if had_postponed:",
                "task.progress.front = Front(task.wall_clock)\n    self._punctuate(task)\n    if had_postponed:",
            ),
        ),
    ),
    "windows do not close in silence": Planted(
        "silent", (Change(ContinuousWorker, "waits_for_front", "return self.task.waits_for_front", "return False"),)
    ),
}
