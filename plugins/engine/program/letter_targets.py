"""Where dead letters go back to: by their headers alone, or as the application reads its topics now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock import Application, ConfigError, Log, Partitioner, Record, SinkNode, SourceNode, default_partitioner
from penstock.program.nodes import decorate, reads
from penstock.program.partitioning import partitions_of_key, record_of_key
from penstock.program.serdes import serdes_of_topic
from penstock.task.dead_letter import FailureNote
from penstock.task.validation import valid_partitions

from .stored_id import read_grown, read_partitioned, read_stored, stored_application


class NoPartitionError(ConfigError):
    """It is not known to which partition a letter goes. The message says why, and shows nothing of the letter."""


class Targets:
    """Where letters may go: what their headers say, where it is not known which application they are of."""

    def choose(self, topic: str, letter: Record, count: int) -> Sequence[int] | None:
        """Return the partitions, of `count`, to which a letter goes: by the hash of its key's bytes; None: to any.

        `letter` has serialized key and value. Raises NoPartitionError.
        """
        return None if letter.key is None else (default_partitioner(letter.key, count),)

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

    def __init__(
        self, application: Application, log: Log, partitioners: Mapping[str, Partitioner] | None = None
    ) -> None:
        """`partitioners`: by source topic, its writers' partitioner, called with a record that has the key alone.

        Raises ConfigError for one of a topic that no source reads.
        """
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
        self._partitioners = {self.topic_now(topic): each for topic, each in (partitioners or {}).items()}
        self._unknown = read_partitioned(stored, log) - self._partitioners.keys()
        for topic in self._partitioners:
            if why := self.refuses(topic):
                raise ConfigError(f"a partitioner of topic {topic!r} was given, and {why}")

    def choose(self, topic: str, letter: Record, count: int) -> Sequence[int] | None:
        """As the sink of the topic does, by the whole record: a windowed key without its window, for instance.

        Where only a source names the topic, its key serde says whether keys are windowed, and its writers' partitioner
        is that which was given here. A letter waits for that if the resharding had one.
        """
        if topic in self._unknown and letter.key is not None:
            raise NoPartitionError(
                "its writers choose partitions by a function of their own: name it (--partitioner), as for the "
                "resharding"
            )
        node, given = self._nodes.get(topic), self._partitioners.get(topic)
        key_serde, value_serde = (None, None) if node is None else (node.key_serde, node.value_serde)
        key, value = serdes_of_topic(key_serde, value_serde, self._application.settings, f"topic {topic!r}", topic)
        sink = node if isinstance(node, SinkNode) and given is None else SinkNode("", topic, ())
        partitioner = sink.partitioner or given
        if partitioner is None and (letter.key is None or sink.partition_by is None):
            hashed = None if letter.key is None or node is None else letter.key[: len(letter.key) - key.window_bytes]
            return super().choose(topic, letter if hashed is None else letter.with_key(hashed), count)
        what = f"sink {sink.name!r}" if given is None else "the partitioner that was given"
        try:
            of_key = None if letter.key is None else key.deserialize(letter.key)
            record = record_of_key(of_key)
            if sink.partitioner:
                of_value = None if letter.value is None else value.deserialize(letter.value)
                record = Record(of_key, of_value, letter.timestamp, letter.headers)
            chosen = partitioner and valid_partitions(partitioner(topic, record, count), count, what)
            if chosen is None and letter.key is not None:
                return partitions_of_key(replace(sink, partitioner=None), key, topic, of_key, count)
            if chosen != ():
                return chosen
            why = "it drops the record"
        except Exception as error:  # a user's function, and a record that may be why it failed
            why = type(error).__name__
        raise NoPartitionError(
            f"{what} cannot choose a partition for it: {why}; `penstock dlq replay --to TOPIC` without --app sends it "
            "by the hash of its key"
        )

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
