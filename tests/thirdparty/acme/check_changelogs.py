"""The contracts of both types of changelogs, on ours."""

from penstock_acme.history import SqliteHistory
from penstock_acme.topics import RowTopics

from penstock.plugins.testing.contracts.changelog import ChangelogContract
from penstock.plugins.testing.contracts.log_changelog import LogChangelogContract


class TestSqliteHistory(ChangelogContract):
    changelog = SqliteHistory
    examples = 5


class TestRowTopics(LogChangelogContract):
    changelog = RowTopics
    examples = 10
