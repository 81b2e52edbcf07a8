"""KeyTasks: which tasks read the records of a key; and the key that a text or a JSON value means."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from penstock import Application, BytesSerde, ConfigError, Record, Serde, SinkNode
from penstock.plugins.logs.partitioner import partition_for_key
from penstock.program.serdes import resolve_serde


class KeyTasks:
    """Finds the tasks of a sub-topology that read records with a key.

    By the serde of their topic and its partitioner: that of the program's sinks which write to the topic; for topics
    from outside, Kafka's.
    """

    def __init__(self, application: Application, subtopology: int) -> None:
        self._number = subtopology
        self._source = application.program.subtopology(subtopology).sources[0]
        settings, where = application.settings, f"source {self._source.name!r}"
        self._serde = resolve_serde(self._source.key_serde, settings.key_serde, where, settings.of_plugins)
        nodes = application.program.nodes.values()
        self._sinks = [each for each in nodes if isinstance(each, SinkNode) and each.topic in self._source.topics]

    def of(self, key: Any, count: int) -> list[str]:
        """Return which of the `count` tasks read records with a key.

        Raises ConfigError where the serde or the partitioner does not take the key.
        """
        source = self._source
        try:
            data = self._serde.serialize(key)
        except Exception as error:  # a serde of another package may raise anything
            raise ConfigError(
                f"source {source.name!r} has no records with key {key!r} ({error}), so it is unknown which task has it"
            ) from error
        usual = partition_for_key(data, count)
        chosen = {usual if each is None else each for each in self._chosen(key, count)}
        if any(not 0 <= each < count for each in chosen):
            raise ConfigError(f"the partitioner of {key!r} chooses {sorted(chosen)} of {count} partitions")
        return [f"{self._number}_{each}" for each in sorted(chosen or {usual})]

    def _chosen(self, key: Any, count: int) -> Iterator[int | None]:
        """Yield the partitions to which the program's sinks write records with a key; None for Kafka's choice."""
        for node in self._sinks:
            if node.partitioner is None:
                yield None
                continue
            try:
                found = node.partitioner(str(node.topic), Record(key, None, 0), count)
            except Exception as error:  # a user's function
                raise ConfigError(
                    f"the partitioner of sink {node.name!r} needs more than the key ({error!r}), so it is unknown "
                    f"which task has {key!r}"
                ) from error
            yield from [found] if found is None or isinstance(found, int) else found


def key_of_json(serde: Serde[Any], store: str, value: Any) -> Any:
    """Return the key of a store that a JSON value means; bytes are base64 text. Raises ConfigError if it fits not."""
    try:
        data = b64decode(value, validate=True) if isinstance(serde, BytesSerde) else serde.serialize(value)
        return serde.deserialize(data)
    except Exception as error:  # a serde of another package may raise anything
        raise ConfigError(
            f"key {shortened(value)} does not fit the key serde {type(serde).__name__} of store {store!r}: {error}"
        ) from error


def shortened(value: object) -> str:
    """Return a value for a message."""
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "..."


def key_of_text(serde: Serde[Any], store: str, text: str) -> Any:
    """Return the key of a store that a text means: itself for the serdes str and bytes, and else JSON.

    Text that is not JSON is taken for a string. Raises ConfigError for text that does not fit the serde.
    """
    name = type(serde).__name__
    try:
        if name in ("StrSerde", "BytesSerde"):
            data = text.encode()
        else:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = text
            data = serde.serialize(value)
        return serde.deserialize(data)
    except Exception as error:  # a serde of another package may raise anything
        raise ConfigError(
            f"key {shortened(text)} does not fit the key serde {name} of store {store!r}: {error}"
        ) from error
