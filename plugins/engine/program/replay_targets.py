"""Where dead letters may go: by the application that they are of, or by their headers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock import Application, ConfigError, Log, SinkNode, SourceNode, default_partitioner
from penstock.program.nodes import decorate, reads
from penstock.program.partitioning import partitions_of_key
from penstock.program.serdes import serdes_of_topic
from penstock.task.dead_letter import FailureNote

from .saved_program import read_note_of_any_version
from .stored_id import read_grown, read_stored, stored_application
from .windowed_keys import WHOLE_KEYS, whole_keys, with_whole_keys

Choose = Callable[[str, bytes, int], Sequence[int]]
"""(topic, serialized key, number of partitions) -> the partitions to which records with this key go."""


Refuses = Callable[[str], str | None]
"""(topic that a letter's headers name) -> why no letter may go there; None: it may."""


def refuses_internal(topic: str) -> str | None:
    """Refuse what is no input of any application by its name, where it is not known which application it was."""
    internal = topic.startswith("__") or topic.endswith("-changelog")
    return "an application's changelog, or a topic of the log's own" if internal else None


def refuses_other_than_inputs(application: Application, log: Log) -> Refuses:
    """Return the function that refuses topics which the application does not read: headers can name any topic."""
    application = stored_application(application, log)
    program = application.program
    sources = [each for each in program.nodes.values() if isinstance(each, SourceNode)]

    def refuses(topic: str) -> str | None:
        if any(reads(each, topic, application.id, program.internal_topics) for each in sources):
            return None
        return f"no source of application {application.id!r} reads it"

    return refuses


def by_hash(topic: str, key: bytes, count: int) -> Sequence[int]:
    """Choose the partition by the hash of the key's bytes."""
    return (default_partitioner(key, count),)


def by_sinks(application: Application, log: Log) -> Choose:
    """Return the function that chooses as the application's sinks do: a windowed key without its window, for instance.

    Where only a source names the topic, its key serde says whether keys are windowed. Others are chosen `by_hash`.
    """
    application = stored_application(application, log)
    kept = whole_keys(application, read_note_of_any_version(application.id, log), log)
    application = with_whole_keys(application, {WHOLE_KEYS: kept})
    program, settings = application.program, application.settings
    nodes: dict[str, SinkNode | SourceNode] = {}
    for node in sorted(program.nodes.values(), key=lambda each: isinstance(each, SinkNode)):
        if isinstance(node, SourceNode):
            nodes |= {decorate(application.id, each, program.internal_topics): node for each in node.topics}
        elif isinstance(node, SinkNode) and isinstance(node.topic, str):
            nodes[decorate(application.id, node.topic, program.internal_topics)] = node

    def choose(topic: str, key: bytes, count: int) -> Sequence[int]:
        if (node := nodes.get(topic)) is None:
            return by_hash(topic, key, count)
        serde, _ = serdes_of_topic(node.key_serde, None, settings, f"topic {topic!r}", topic)
        if isinstance(node, SinkNode) and (node.partitioner or node.partition_by):
            try:
                if chosen := partitions_of_key(node, serde, topic, serde.deserialize(key), count):
                    return chosen
                raise ValueError("its partitioner drops records with this key")
            except Exception as error:  # a user's function, and a key that may be why the record failed
                raise ConfigError(
                    f"sink {node.name!r} cannot choose a partition of {topic!r} for key {key!r}: {error!r}: leave "
                    "--app away to send it by the hash of its key"
                ) from error
        return by_hash(topic, key[: len(key) - serde.window_bytes], count)

    return choose


IsMoved = Callable[[FailureNote], bool]
"""(note of a letter) -> whether records with its key go to another partition than the one that it was read from."""


def moves_none(note: FailureNote) -> bool:
    """Return False, where it is not known which application it was."""
    return False


def moved_by_resharding(application: Application, log: Log) -> IsMoved:
    """Return whether a letter was read from a topic that has grown since, before the application was resharded.

    The state of its key is where records go by the new number of partitions.
    """
    grown = read_grown(read_stored(application.id, log), log)

    def is_moved(note: FailureNote) -> bool:
        end = grown.get(note.topic or "", {}).get(str(note.partition))
        return end is not None and note.offset is not None and note.offset < end

    return is_moved


@dataclass(frozen=True)
class Targets:
    """Where letters may go."""

    choose: Choose = by_hash
    refuses: Refuses = refuses_internal
    is_moved: IsMoved = moves_none


BY_HEADERS = Targets()
"""What the headers of a letter say, where it is not known which application it was."""


def targets_of(application: Application, log: Log) -> Targets:
    """Return where letters of an application may go."""
    return Targets(
        by_sinks(application, log),
        refuses_other_than_inputs(application, log),
        moved_by_resharding(application, log),
    )
