"""Where dead letters go back to: by their headers alone, or as the application reads its topics now."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock import Application, ConfigError, Headers, Log, SinkNode, SourceNode, default_partitioner
from penstock.program.nodes import decorate, reads
from penstock.program.partitioning import partitions_of_key
from penstock.program.serdes import serdes_of_topic
from penstock.task.dead_letter import FailureNote

from .stored_id import read_grown, read_stored, stored_application


class NoPartitionError(ConfigError):
    """A sink that cannot choose a partition for a letter. The message shows the letter's key."""


class Targets:
    """Where letters may go: what their headers say, where it is not known which application they are of."""

    def choose(self, topic: str, key: bytes, count: int, headers: Headers) -> Sequence[int]:
        """Return the partitions, of `count`, to which a record goes, by the hash of its serialized key's bytes."""
        return (default_partitioner(key, count),)

    def refuses(self, topic: str) -> str | None:
        """Return why no letter may go to a topic that its headers name: it is no input by its name; None: it may."""
        internal = topic.startswith("__") or topic.endswith("-changelog")
        return "an application's changelog, or a topic of the log's own" if internal else None

    def topic_now(self, topic: str) -> str:
        """Return the topic that is read in place of the one that a letter was read from."""
        return topic

    def is_moved(self, note: FailureNote) -> bool:
        """Return whether records with a letter's key now go to another partition than the one it was read from."""
        return False


class ApplicationTargets(Targets):
    """Where letters of an application may go: to its inputs, and into the partitions that its sinks choose."""

    def __init__(self, application: Application, log: Log) -> None:
        own_id = application.given_id or application.id  # beside a run it has the id of its layout
        stored = read_stored(own_id, log)
        self._application = application = stored_application(application, log)
        self._grown = read_grown(stored, log)
        program = application.program
        # Internal topics have the name of the layout that they were made for.
        self._of_layouts = re.compile(rf"{re.escape(own_id)}(?:-layout-[0-9]+)?-(.+)")
        self._replaced = stored.sources
        self._sources = [each for each in program.nodes.values() if isinstance(each, SourceNode)]
        self._nodes: dict[str, SinkNode | SourceNode] = {
            decorate(application.id, topic, program.internal_topics): source
            for source in self._sources
            for topic in source.topics
        }
        for node in program.nodes.values():
            if isinstance(node, SinkNode) and isinstance(node.topic, str):
                self._nodes[decorate(application.id, node.topic, program.internal_topics)] = node

    def choose(self, topic: str, key: bytes, count: int, headers: Headers) -> Sequence[int]:
        """As the sink of the topic does: a windowed key without its window, for instance.

        Where only a source names the topic, its key serde says whether keys are windowed.
        """
        if (node := self._nodes.get(topic)) is None:
            return super().choose(topic, key, count, headers)
        serde, _ = serdes_of_topic(node.key_serde, None, self._application.settings, f"topic {topic!r}", topic)
        if isinstance(node, SinkNode) and (node.partitioner or node.partition_by):
            try:
                if chosen := partitions_of_key(node, serde, topic, serde.deserialize(key), count, headers):
                    return chosen
                raise ValueError("its partitioner drops records with this key")
            except Exception as error:  # a user's function, and a key that may be why the record failed
                raise NoPartitionError(
                    f"sink {node.name!r} cannot choose a partition of {topic!r} for key {key!r}: {error!r}: "
                    "`penstock dlq replay` without --app sends it by the hash of its key"
                ) from error
        return super().choose(topic, key[: len(key) - serde.window_bytes], count, headers)

    def refuses(self, topic: str) -> str | None:
        """Refuse topics that the application does not read: headers can name any topic."""
        application, topic = self._application, self.topic_now(topic)
        if any(reads(source, topic, application.id, application.program.internal_topics) for source in self._sources):
            return None
        return f"no source of application {application.id!r} reads it"

    def topic_now(self, topic: str) -> str:
        """As the last resharding says: the replacement of a source topic, the repartition topic of this layout."""
        application = self._application
        internal, found = application.program.internal_topics, self._of_layouts.fullmatch(topic)
        if found is not None and found[1] in internal:
            return decorate(application.id, found[1], internal)
        return self._replaced.get(topic, topic)

    def is_moved(self, note: FailureNote) -> bool:
        """So is it where another topic is read now, or the topic grew before the application was resharded.

        The state of the letter's key is there, too.
        """
        if note.topic is not None and self.topic_now(note.topic) != note.topic:
            return True
        end = self._grown.get(note.topic or "", {}).get(str(note.partition))
        return end is not None and note.offset is not None and note.offset < end


BY_HEADERS = Targets()
