"""delete_layout: deletes all that an application has under one id: topics, changelog, commits and local state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from penstock import Log, Settings, World
from penstock.plugins.applications.own_topics import topics_beside
from penstock.plugins.runtime.local_state.directories import remove_all
from penstock.plugins.runtime.locations import open_deltas, state_directory
from penstock.plugins.upgrade.saved_program import read_note, repartition_topics, saved_subtopologies
from penstock.support.names import changelog_topic


def delete_layout(
    settings: Settings, log: Log, application_id: str, world: World, check_lease: Callable[[], None]
) -> None:
    """Delete what is stored under an id, its commits last; idempotent. Raises ChangelogError and LogError.

    The note of its program says what there is, and goes with the commits: a call that was killed can be repeated. The
    lease is checked before each deletion: a process that was frozen must not delete what its successor has made.
    """
    note = read_note(application_id, log)
    topics = repartition_topics(application_id, note) | topics_beside(application_id)
    for number, each in saved_subtopologies(note).items() if note else ():
        topics |= {changelog_topic(application_id, store) for store in each["stores"]}
        tasks = each["tasks"] or 0 if each["stores"] and settings.log_changelog is None else 0
        for partition in range(tasks):
            with closing(open_deltas(settings, application_id, f"{number}_{partition}")) as changelog:
                changelog.world = world
                check_lease()
                changelog.destroy()
    there = log.topics()
    for topic in sorted(topics):
        if topic in there and there[topic].internal:
            check_lease()
            log.delete_topic(topic)
    check_lease()
    log.delete_commits(application_id)
    remove_all(state_directory(settings) / application_id)
