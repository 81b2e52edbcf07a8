"""Both changelogs keep the published contract."""

from __future__ import annotations

from pathlib import Path

from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.changelogs.memory import MemoryChangelog
from penstock.plugins.testing.contracts.changelog import ChangelogContract


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
