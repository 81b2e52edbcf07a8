"""A log in memory that stands for an application's own, so that a plan can be made where that cannot be reached."""

from __future__ import annotations

from contextlib import closing

from penstock import Application, Commit, Log, SinkNode, SourceNode, TopicPartition
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.upgrade.saved_program import Note, repartition_topics, saved_subtopologies, write_note
from penstock.settings.dead_letters import dead_letter_topics


def offline_log(application: Application, before: Note, partitions: int | None) -> Log:
    """Return a log with the topics that a program names, on which another program has run last (`before`; empty: none).

    Topics that the last program read have the number of partitions that they had; others have `partitions`, or without
    it the largest of these numbers. No record waits in any of them.
    """
    log, program, settings = MemoryLog(), application.program, application.settings
    counts = dict((before["fingerprint"]["partitions"] or {}) if before else {})
    usual = partitions or max(counts.values(), default=1)
    own = repartition_topics(application.id, before)
    for topic, count in counts.items():
        log.create_topic(topic, count, internal=topic in own)
    handlers = (settings.deserialization_handler, settings.processing_handler, settings.production_handler)
    named = [topic for node in program.nodes.values() if isinstance(node, SourceNode) for topic in node.topics]
    named += [
        node.topic for node in program.nodes.values() if isinstance(node, SinkNode) and isinstance(node.topic, str)
    ]
    for topic in dict.fromkeys((*named, *dead_letter_topics(handlers))):
        if topic not in program.internal_topics and topic not in log.topics():
            log.create_topic(topic, usual)
    changelog = settings.log_changelog
    if before:
        for each in saved_subtopologies(before).values():
            for name in [name for name, store in each["stores"].items() if store["logged"] and changelog is not None]:
                assert changelog is not None
                log.create_topic(
                    changelog.topic_of(application.id, name),
                    each["tasks"],
                    {"cleanup.policy": "compact"},
                    internal=True,
                )
        write_note(application.id, log, before)
        _commit(application.id, log, before)
    return log


def _commit(application_id: str, log: Log, before: Note) -> None:
    """Commit a position in each partition that the last program read."""
    counts = before["fingerprint"]["partitions"]
    for number, topics in before["reads"].items():
        for partition in range(max((counts[topic] for topic in topics), default=0)):
            read = [TopicPartition(topic, partition) for topic in topics if partition < counts[topic]]
            with closing(log.open_committer(application_id, f"{number}_{partition}", read)) as committer:
                committer.commit(Commit(dict.fromkeys(read, 0), "planned"), [])
