"""Our changelogs pass the published contracts."""

from __future__ import annotations

from pathlib import Path

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
    kills = 6

    def location(self, directory: Path) -> str:
        return f"{directory.as_uri()}?compression=zlib"


class TestMemory(ChangelogContract):
    changelog = MemoryChangelog
    in_one_process = True
    examples = 50


class TestTopic(LogChangelogContract):
    changelog = TopicChangelog
