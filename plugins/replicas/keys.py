"""KeyTasks: which tasks read the records of a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock import Application, ConfigError, SinkNode, default_partitioner
from penstock.program.partitioning import partitions_of_key
from penstock.program.serdes import resolve_serde


class KeyTasks:
    """Finds the tasks of a sub-topology that read records with a key.

    By the serde of their topic and its partitioner: that of the program's sinks which write to the topic; for topics
    from outside, the default partitioner.
    """

    def __init__(self, application: Application, subtopology: int) -> None:
        self._number = subtopology
        self._source = application.program.subtopology(subtopology).sources[0]
        settings, where = application.settings, f"source {self._source.name!r}"
        self._serde = resolve_serde(self._source.key_serde, settings.key_serde, where, settings.of_plugins)
        topics = self._source.topics
        sinks = [each for each in application.program.nodes.values() if isinstance(each, SinkNode)]
        self._sinks = [each for each in sinks if each.topic in topics] or [
            SinkNode("", topics[0] if topics else "", ())
        ]

    def of(self, key: Any, count: int) -> list[str]:
        """Return which of the `count` tasks read records with a key.

        Raises ConfigError where the serde or the partitioner does not take the key.
        """
        source = self._source
        try:
            usual = self._serde.serialize(key)
        except Exception as error:  # a serde of another package may raise anything
            raise ConfigError(
                f"source {source.name!r} has no records with key {key!r} ({error}), so it is unknown which task has it"
            ) from error
        chosen = set(self._chosen(key, count)) or {default_partitioner(usual, count)}
        if any(not 0 <= each < count for each in chosen):
            raise ConfigError(f"the partitioner of {key!r} chooses {sorted(chosen)} of {count} partitions")
        return [f"{self._number}_{each}" for each in sorted(chosen)]

    def may_have(self, key: Any, count: int) -> list[str]:
        """Return `of`, and for a windowed key also the task that has it if it was partitioned by key and window.

        Earlier versions of penstock wrote windowed keys so, and so do clients that know no windows. Raises as `of`.
        """
        names = self.of(key, count)
        if not self._serde.window_bytes:
            return names
        return sorted({*names, f"{self._number}_{default_partitioner(self._serde.serialize(key), count)}"})

    def _chosen(self, key: Any, count: int) -> Iterator[int]:
        """Yield the partitions to which the program's sinks write records with a key, or else other writers."""
        for node in self._sinks:
            try:
                yield from partitions_of_key(node, self._serde, str(node.topic), key, count)
            except Exception as error:  # a user's function
                raise ConfigError(
                    f"the partitioner of sink {node.name!r} needs more than the key ({error!r}), so it is unknown "
                    f"which task has {key!r}"
                ) from error
