"""KeyRoute: which task has a key; and the key that a text means."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from penstock import Application, BytesSerde, ConfigError, StoreBuilder
from penstock.plugins.logs.partitioner import partition_for_key
from penstock.plugins.replicas.contents import key_serde
from penstock.program.serdes import resolve_serde


class KeyRoute:
    """Finds the task of a sub-topology that has a key: by the serde of its source and Kafka's default partitioner."""

    def __init__(self, application: Application, subtopology: int) -> None:
        settings = application.settings
        self._source = application.program.subtopology(subtopology).sources[0]
        where = f"source {self._source.name!r}"
        self._serde = resolve_serde(self._source.key_serde, settings.key_serde, where, settings.of_plugins)

    def partition(self, key: Any, partitions: int) -> int:
        """Return the partition of records with a key. Raises ConfigError for a key that the source's serde refuses."""
        try:
            data = self._serde.serialize(key)
        except Exception as error:  # a serde of another package may raise anything
            raise ConfigError(
                f"source {self._source.name!r} has no records with key {key!r} ({error}), so it is unknown which task "
                "has it: name the task, or ask all tasks"
            ) from error
        return partition_for_key(data, partitions)


def key_of_json(application: Application, store: StoreBuilder, value: Any) -> Any:
    """Return the key of a store that a JSON value means; bytes are base64 text. Raises ConfigError if it fits not."""
    serde = key_serde(application, store)
    try:
        data = b64decode(value, validate=True) if isinstance(serde, BytesSerde) else serde.serialize(value)
        return serde.deserialize(data)
    except Exception as error:  # a serde of another package may raise anything
        raise ConfigError(
            f"key {shortened(value)} does not fit the key serde {type(serde).__name__} of store {store.name!r}: {error}"
        ) from error


def shortened(value: object) -> str:
    """Return a value for a message."""
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "..."


def key_of_text(application: Application, store: StoreBuilder, text: str) -> Any:
    """Return the key of a store that a text means: itself for the serdes str and bytes, and else JSON.

    Text that is not JSON is taken for a string. Raises ConfigError for text that does not fit the serde.
    """
    serde = key_serde(application, store)
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
            f"key {shortened(text)} does not fit the key serde {name} of store {store.name!r}: {error}"
        ) from error
