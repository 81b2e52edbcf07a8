"""What serdes need at a start: a schema registry that answers, and schemas that fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from penstock import Application, ConfigError, Serde, SerdeError, SerdeUnavailableError, SinkNode, SourceNode
from penstock.program.nodes import decorate
from penstock.program.serdes import resolve_serde, serdes_of_topic
from penstock.store.specs import declared_serdes


def prepare_serdes(application: Application, unused: Collection[tuple[str, str, str]] = ()) -> None:
    """Prepare the serdes of all topics and stores. Raises ConfigError with the node and topic, or the store.

    `unused`: serdes of topics that are not called, as ("source" or "sink", topic, "keys" or "values").
    """
    for where, serde, writes in _serdes(application, unused):
        try:
            serde.prepare(writes=writes)
        except (ConfigError, SerdeError, SerdeUnavailableError) as error:
            raise ConfigError(f"application {application.id!r}, {where}: {error}") from error


def check_serdes(application: Application) -> None:
    """Make the serdes of all topics and stores. Raises MissingPackageError for what one needs, among others."""
    for _ in _serdes(application):
        pass


def _serdes(
    application: Application, unused: Collection[tuple[str, str, str]] = ()
) -> Iterator[tuple[str, Serde[Any], bool]]:
    """Yield each serde with where it is used, and whether values are written with it.

    Topics of patterns are left out: which they are is known when records come.
    """
    program, settings = application.program, application.settings
    for node in program.nodes.values():
        if isinstance(node, SourceNode):
            kind, topics = "source", node.topics
        elif isinstance(node, SinkNode) and isinstance(node.topic, str):
            kind, topics = "sink", (node.topic,)
        else:
            continue
        what = f"{kind} {node.name!r}"
        for topic in topics:
            name = decorate(application.id, topic, program.internal_topics)
            key, value = serdes_of_topic(node.key_serde, node.value_serde, settings, what, name)
            for part, serde in (("keys", key), ("values", value)):
                if (kind, topic, part) not in unused:
                    yield f"{what}, {part} of topic {name!r}", serde, kind == "sink"
    for store in program.all_stores():
        for name, given in declared_serdes(store).items():
            serde = resolve_serde(given, settings.state_serde, store.name, settings.of_plugins)
            yield f"store {store.name!r}, {name}", serde, True
