"""Which tasks may have a key: how the keys of each source are partitioned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache
from typing import Any

from penstock import (
    Application,
    ConfigError,
    Headers,
    Serde,
    SinkNode,
    SourceNode,
    StoreSpec,
    TopicPartition,
    Windowed,
    default_partitioner,
)
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.program.nodes import decorate, reads
from penstock.program.partitioning import partitions_of_key
from penstock.program.serdes import resolve_serde


class _OfThread(threading.local):
    """A serde for each thread: one thread at a time uses one."""

    def __init__(self, make: Callable[[], Serde[Any]]) -> None:
        self.serde = make()


class _SourceKeys:
    """How the keys of the topics of one source are partitioned.

    By the serde of the source and the partitioner of the program's sinks that write to its topics; for topics from
    outside, by the default partitioner.
    """

    def __init__(self, application: Application, source: SourceNode) -> None:
        settings, topics = application.settings, source.topics
        self.source = source
        # The schema of a key is that of its topic, not one of its own.
        topic = decorate(application.id, topics[0], application.program.internal_topics) if topics else ""

        def make() -> Serde[Any]:
            given, default = deepcopy(source.key_serde), deepcopy(settings.key_serde)
            serde = resolve_serde(given, default, f"source {source.name!r}", settings.of_plugins)
            return serde.bind(topic, is_key=True)

        self._of_thread = _OfThread(make)
        sinks = [node for node in application.program.nodes.values() if isinstance(node, SinkNode)]
        own = [sink for sink in sinks if sink.topic in topics]
        self._sinks = own or [SinkNode("", topics[0] if topics else "", ())]
        self.is_default = not own and not may_wait(self.serde)
        """Whether another source from outside with an equal serde has the same partitions."""

    @property
    def serde(self) -> Serde[Any]:
        """The serde, for this thread."""
        return self._of_thread.serde

    @property
    def only_compute(self) -> bool:
        """Whether to find a partition only computes."""
        calls = any(sink.partitioner is not None or sink.partition_by is not None for sink in self._sinks)
        return not calls and not may_wait(self.serde)

    def partitions(self, key: Any, count: int, headers: Headers | None = None) -> list[int]:
        """Return the partitions, of `count`, of the records with a key. Raises ConfigError as `KeyTasks.of`."""
        source = self.source
        try:
            usual = self.serde.serialize(key)
        except Exception as error:  # a serde of another package may raise anything
            raise ConfigError(
                f"source {source.name!r} has no records with key {key!r} ({error}), so it is unknown which task has it"
            ) from error
        chosen = set(self._chosen(key, count, headers)) or {default_partitioner(usual, count)}
        if any(not 0 <= each < count for each in chosen):
            raise ConfigError(f"the partitioner of {key!r} chooses {sorted(chosen)} of {count} partitions")
        return sorted(chosen)

    def _chosen(self, key: Any, count: int, headers: Headers | None) -> Iterator[int]:
        """Yield the partitions to which the program's sinks write records with a key, or else other writers."""
        for node in self._sinks:
            try:
                yield from partitions_of_key(node, self.serde, str(node.topic), key, count, headers)
            except Exception as error:  # a user's function
                raise ConfigError(
                    f"the partitioner of sink {node.name!r} needs more than the key and the headers given ({error!r}), "
                    f"so it is unknown which task has {key!r}"
                ) from error


class KeyTasks:
    """Finds the tasks that read records with a key; any thread calls all methods.

    `store`: only the topics whose records reach this store count. With None, or a store without such topics, all topics
    of the sub-topology count.
    """

    def __init__(self, application: Application, subtopology: int, store: str | None = None) -> None:
        self._application, self._number = application, subtopology
        self._counted: tuple[Mapping[str, SavedTask], int] | None = None
        part = application.program.subtopology(subtopology)
        sources_by_store = {} if store is None else application.program.sources_of_stores(part)
        names = sources_by_store.get(store or "", set())
        stores = {each.name: each for each in part.stores if isinstance(each, StoreSpec)}
        self._record_key = stores[store].division.record_key if store in stores else None
        self._sources: list[_SourceKeys] = []
        for source in [each for each in part.sources if each.name in names] or part.sources:
            keys = _SourceKeys(application, source)
            equal = (each for each in self._sources if each.is_default and each.source.key_serde == source.key_serde)
            if not keys.is_default or next(equal, None) is None:
                self._sources.append(keys)

    @property
    def only_compute(self) -> bool:
        """Whether to find a task only computes: no function of a user, and no serde that may wait, is called."""
        return all(source.only_compute for source in self._sources)

    def count(self, tasks: Collection[Collection[TopicPartition]]) -> int:
        """Return the number of tasks that share the keys: the number of partitions of the topics.

        `tasks`: the partitions that each task of the sub-topology reads. Other topics of it may have more.
        """
        application, known = self._application, self._sources

        @cache
        def is_ours(topic: str) -> bool:
            internal = application.program.internal_topics
            return any(reads(each.source, topic, application.id, internal) for each in known)

        own = sum(any(is_ours(partition.topic) for partition in partitions) for partitions in tasks)
        return own or len(tasks)

    def count_of(self, tasks: Mapping[str, SavedTask]) -> int:
        """Return `count` for saved tasks; it is kept for the next call with the same object."""
        found = self._counted
        if found is None or found[0] is not tasks:
            found = self._counted = (tasks, self.count([task.partitions for task in tasks.values()]))
        return found[1]

    def of(self, key: Any, count: int) -> list[str]:
        """Return which of `count` tasks read records with a key.

        Raises ConfigError where the serde or the partitioner does not take the key, and where several sources have it
        in different tasks.
        """
        found = list(dict.fromkeys(tuple(partition) for partition in self._partitions(key, count)))
        if len(found) > 1:
            names = " and ".join(repr(source.source.name) for source in self._sources)
            raise ConfigError(f"sources {names} have records with key {key!r} in different tasks")
        return self._names(found[0])

    def _partitions(self, key: Any, count: int, headers: Headers | None = None) -> list[list[int]]:
        """Return the partitions of a key by each source whose serde takes it. Raises ConfigError if none does."""
        if self._record_key is not None:
            key = self._of_record(key, self._record_key)
        if len(self._sources) == 1:
            return [self._sources[0].partitions(key, count, headers)]
        found: list[list[int]] = []
        refused: ConfigError | None = None
        for source in self._sources:
            try:
                found.append(source.partitions(key, count, headers))
            except ConfigError as error:
                refused = refused or error
        if not found and refused is not None:
            raise refused
        return found

    def _of_record(self, key: Any, record_key: Callable[[Any], Any]) -> Any:
        """Return the key of the records that made a row of a verb's own store, without a window."""
        try:
            found = record_key(key)
        except Exception as error:
            raise ConfigError(f"{key!r} is no key of a row, so it is unknown which task has it: {error}") from error
        is_windowed = any(source.serde.window_bytes for source in self._sources)
        return found.key if isinstance(found, Windowed) and not is_windowed else found

    def _names(self, partitions: Iterable[int]) -> list[str]:
        return [f"{self._number}_{partition}" for partition in partitions]

    def may_have(self, key: Any, count: int, headers: Headers | None = None) -> list[str]:
        """Return the tasks of all sources, and for a windowed key those that have it by key and window.

        Clients that know no windows write windowed keys so. `headers` are for partitioners that go by them. Raises
        ConfigError where no serde takes the key, or a partitioner does not.
        """
        found = {each: None for chosen in self._partitions(key, count, headers) for each in chosen}
        windowed = [source.serde for source in self._sources if source.serde.window_bytes]
        if not windowed:
            return self._names(found)
        for serde in windowed:
            with suppress(Exception):  # of a source that has no such key
                found[default_partitioner(serde.serialize(key), count)] = None
        return self._names(sorted(found))


def may_wait(serde: Serde[Any]) -> bool:
    """Return whether a serde may take long: it is of another package, runs code of a user, or asks a registry."""
    parts = [each for each in getattr(serde, "__dict__", {}).values() if isinstance(each, Serde)]
    place = type(serde).__module__
    is_ours = place.startswith("penstock.") and not place.startswith(_WAITING)
    return not is_ours or any(map(may_wait, parts))


_WAITING = ("penstock.plugins.serdes.registry", "penstock.plugins.serdes.typed", "penstock.plugins.serdes.pickle")
"""Modules of serdes that ask a registry, or call methods of a user's classes."""
