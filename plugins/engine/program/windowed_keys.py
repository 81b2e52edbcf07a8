"""Topics whose windowed keys stay partitioned by key and window, as earlier versions of penstock wrote them.

The default partitioner takes the key alone, as Kafka Streams does. Where an application has already written a topic,
its rows would go to other partitions than those that they were in, so it keeps its partitioner until a sink has a
`partition_by` or a `partitioner`. The note of the program has the topics that keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

from penstock import Application, Log, SinkNode
from penstock.plugins.engine.task import notes
from penstock.program.partitioning import whole_key
from penstock.program.serdes import resolve_serde

from .saved_program import ProgramNote

WHOLE_KEYS = "whole_keys"
"""The entry of a note. Versions that knew only that partitioner have none."""
CHOSEN = ""
"""The entry for sinks that choose a topic for each record."""


def whole_keys(application: Application, before: ProgramNote, log: Log) -> set[str]:
    """Return the topics that keep this partitioner; `before`: the note of the program that ran last, empty if none did.

    A topic that the program does not name any more stays among them. A new internal topic is among them if it is
    co-partitioned with one of them: in topics of two partitioners a join finds no rows.
    """
    chosen = _chosen_otherwise(application)
    return _with_copartitioned(application, before, _by_whole_key(application, before, log) - chosen) - chosen


def left_whole_keys(application: Application, before: ProgramNote, log: Log) -> set[str]:
    """Return the topics that had this partitioner, and for which a sink of the program now chooses another one."""
    return _by_whole_key(application, before, log) & _chosen_otherwise(application)


def note_before_reset(application: Application, log: Log) -> None:
    """Save these topics for the first start after a reset, which deletes the note of the program but no output."""
    before = notes.PROGRAM.read(application.id, log)
    kept = sorted(whole_keys(application, before, log)) if before else None
    if kept is not None and kept != notes.WHOLE_KEYS.read(application.id, log):
        notes.WHOLE_KEYS.write(application.id, log, kept)


def _by_whole_key(application: Application, before: ProgramNote, log: Log) -> set[str]:
    if not before:
        return set(notes.WHOLE_KEYS.read(application.id, log))
    if WHOLE_KEYS in before:
        return set(before[WHOLE_KEYS])
    # Which topics from outside such a version has written is not known, so it may be any; of internal ones it is.
    return {topic_of(each) for each in _windowed_sinks(application)} - _new_internal(application, before)


def _with_copartitioned(application: Application, before: ProgramNote, kept: set[str]) -> set[str]:
    program = application.program
    topics = {each.name: each.topics for part in program.subtopologies for each in part.sources}
    groups = [
        {topic for source in sources for topic in topics.get(source, ())}
        for _, sources in program.copartitioned_sources()
    ]
    new = _new_internal(application, before) & {topic_of(each) for each in _windowed_sinks(application)}
    for _ in range(len(new)):  # a new one may be co-partitioned with another new one
        kept = kept.union(*(group & new for group in groups if group & kept))
    return kept


def _new_internal(application: Application, before: ProgramNote) -> set[str]:
    """Return the internal topics that the program which ran last did not have."""
    return application.program.internal_topics.keys() - set(before.get("fingerprint", {}).get("internal_topics", ()))


def _chosen_otherwise(application: Application) -> set[str]:
    sinks = _windowed_sinks(application)
    return {
        topic_of(each) for each in sinks if each.partitioner is not None or each.partition_by not in (None, whole_key)
    }


def kept_whole_keys(application: Application) -> set[str]:
    """Return the topics of an application that `with_whole_keys` returned whose sinks keep that partitioner."""
    return {topic_of(each) for each in _windowed_sinks(application) if each.partition_by is whole_key}


def with_whole_keys(application: Application, note: ProgramNote) -> Application:
    """Return the application, whose sinks of the topics in a note keep that partitioner."""
    kept = {
        each.name: replace(each, partition_by=whole_key)
        for each in _windowed_sinks(application)
        if topic_of(each) in note[WHOLE_KEYS]
    }
    if not kept:
        return application
    made, program = copy(application), application.program

    def of(node: Any) -> Any:
        return kept.get(node.name, node)

    made.program = replace(
        program,
        nodes={name: of(node) for name, node in program.nodes.items()},
        subtopologies=tuple(replace(each, nodes=tuple(map(of, each.nodes))) for each in program.subtopologies),
    )
    return made


def topic_of(sink: SinkNode) -> str:
    """Return the name of a sink's topic in a note."""
    return sink.topic if isinstance(sink.topic, str) else CHOSEN


def _windowed_sinks(application: Application) -> Iterator[SinkNode]:
    settings = application.settings
    for node in application.program.nodes.values():
        if isinstance(node, SinkNode):
            serde = resolve_serde(node.key_serde, settings.key_serde, f"sink {node.name!r}")
            if serde.window_bytes:
                yield node
