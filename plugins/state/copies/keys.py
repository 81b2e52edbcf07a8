"""KeyTasks: which tasks read the records of a key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from penstock import Application, ConfigError, Serde, SinkNode, default_partitioner
from penstock.program.nodes import decorate
from penstock.program.partitioning import partitions_of_key
from penstock.program.serdes import resolve_serde


class _OfThread(threading.local):
    """A serde for each thread: one thread at a time uses one."""

    def __init__(self, make: Callable[[], Serde[Any]]) -> None:
        self.serde = make()


class KeyTasks:
    """Finds the tasks of a sub-topology that read records with a key; any thread calls all methods.

    By the serde of their topic and the partitioner of the program's sinks to it, or else the default partitioner.
    """

    def __init__(self, application: Application, subtopology: int) -> None:
        self._number = subtopology
        self._source = application.program.subtopology(subtopology).sources[0]
        source, settings, topics = self._source, application.settings, self._source.topics
        # The schema of a key is that of its topic, not one of its own.
        topic = decorate(application.id, topics[0], application.program.internal_topics) if topics else ""

        def make() -> Serde[Any]:
            given, default = deepcopy(source.key_serde), deepcopy(settings.key_serde)
            made = resolve_serde(given, default, f"source {source.name!r}", settings.of_plugins)
            return made.bind(topic, is_key=True)

        self._of_thread = _OfThread(make)
        sinks = [each for each in application.program.nodes.values() if isinstance(each, SinkNode)]
        self._sinks = [each for each in sinks if each.topic in topics] or [
            SinkNode("", topics[0] if topics else "", ())
        ]

    @property
    def _serde(self) -> Serde[Any]:
        return self._of_thread.serde

    @property
    def only_compute(self) -> bool:
        """Whether to find a task only computes: no function of a user, and no serde that may wait, is called."""
        calls = any(each.partitioner is not None or each.partition_by is not None for each in self._sinks)
        return not calls and not may_wait(self._serde)

    def of(self, key: Any, count: int) -> list[str]:
        """Return which of the `count` tasks read records with a key. Raises ConfigError if that is unknown."""
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
        """Return `of`, and for a windowed key the task that has it if its writer partitioned it by key and window.

        Earlier versions of penstock did so, and so do clients that know no windows.
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


def may_wait(serde: Serde[Any]) -> bool:
    """Return whether a serde may take long: it is of another package, runs code of a user, or asks a registry."""
    parts = [each for each in getattr(serde, "__dict__", {}).values() if isinstance(each, Serde)]
    place = type(serde).__module__
    is_ours = place.startswith("penstock.") and not place.startswith(_WAITING)
    return not is_ours or any(map(may_wait, parts))


_WAITING = ("penstock.plugins.serdes.registry", "penstock.plugins.serdes.typed", "penstock.plugins.serdes.pickle")
"""Modules of serdes that ask a registry, or call methods of a user's classes."""
