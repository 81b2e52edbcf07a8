"""Which tasks read the records of a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock import Application, ConfigError, Record, SinkNode
from penstock.plugins.logs.partitioner import partition_for_key
from penstock.program.serdes import resolve_serde


def tasks_of_key(application: Application, tasks: Sequence[str], key: Any) -> list[str]:
    """Return which of the `tasks` of a sub-topology, all of them, read records with a key.

    By the serde of their topic and its partitioner: that of the program's sinks which write to the topic; for topics
    from outside, Kafka's. Raises ConfigError where the serde or the partitioner does not take the key.
    """
    number = int(tasks[0].partition("_")[0])
    source, settings = application.program.subtopology(number).sources[0], application.settings
    serde = resolve_serde(source.key_serde, settings.key_serde, f"source {source.name!r}", settings.of_plugins)
    try:
        data = serde.serialize(key)
    except Exception as error:  # a serde of another package may raise anything
        raise ConfigError(
            f"source {source.name!r} has no records with key {key!r} ({error}), so it is unknown which task has it"
        ) from error
    usual = partition_for_key(data, len(tasks))
    chosen = {usual if each is None else each for each in _chosen(application, source.topics, key, len(tasks))}
    return [f"{number}_{each}" for each in sorted(chosen or {usual})]


def _chosen(application: Application, topics: Sequence[str], key: Any, count: int) -> Iterator[int | None]:
    """Yield the partitions to which the program's sinks write records with a key; None for Kafka's choice."""
    for node in application.program.nodes.values():
        if not isinstance(node, SinkNode) or node.topic not in topics:
            continue
        if node.partitioner is None:
            yield None
            continue
        try:
            found = node.partitioner(str(node.topic), Record(key, None, 0), count)
        except Exception as error:  # a user's function
            raise ConfigError(
                f"the partitioner of sink {node.name!r} needs more than the key ({error!r}), so it is unknown which "
                f"task has {key!r}"
            ) from error
        yield from [found] if found is None or isinstance(found, int) else found
