"""Our changelogs pass the published contracts, and the contract finds faults that were once made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ChangelogError
from penstock.plugins.changelogs.chain import route_to
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.changelogs.memory import MemoryChangelog
from penstock.plugins.changelogs.topic import TopicChangelog
from penstock.plugins.testing.contracts.changelog import ChangelogContract
from penstock.plugins.testing.contracts.log_changelog import LogChangelogContract


class TestDirectory(ChangelogContract):
    changelog = DirectoryChangelog
    examples = 40


class TestCompressed(ChangelogContract):
    changelog = DirectoryChangelog
    examples = 10

    def location(self, directory: Path) -> str:
        return f"{directory.as_uri()}?compression=zlib"


class TestMemory(ChangelogContract):
    changelog = MemoryChangelog
    examples = 50


class TestTopic(LogChangelogContract):
    changelog = TopicChangelog


class _DeletesWhateverItDoesNotNeed(MemoryChangelog):
    """A snapshot that is written late counts as the newest file."""

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        history = self._history
        route = route_to(version, history.deltas.get, history.snapshots)
        if route.missing is None and is_current():
            for each in set(history.deltas) - {delta.version for delta in route.deltas}:
                del history.deltas[each], history.changes[each]
            for each in set(history.snapshots) - {route.start}:
                del history.snapshots[each]


class _NeverAsks(MemoryChangelog):
    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        super().clean(version, grace_ms, now_ms, lambda: True)


@pytest.mark.parametrize(
    ("fault", "frozen", "successor"),
    [
        (_DeletesWhateverItDoesNotNeed, "before its snapshot", "commits"),
        (_DeletesWhateverItDoesNotNeed, "before its snapshot", "snapshots"),
        (_DeletesWhateverItDoesNotNeed, "in its snapshot", "snapshots"),
        (_NeverAsks, "before its snapshot", "starts anew"),
    ],
)
def test_the_contract_finds_a_changelog_that_lets_a_frozen_process_delete(
    tmp_path: Path, fault: type[MemoryChangelog], frozen: str, successor: str
) -> None:
    contract = type("Faulty", (ChangelogContract,), {"changelog": fault})()
    with pytest.raises(ChangelogError, match="no way to version"):
        contract.test_a_frozen_process_deletes_nothing_that_its_successor_needs(tmp_path, frozen, successor)
