"""The serdes of a topic's keys and values, for the command line."""

from __future__ import annotations

from penstock.program.nodes import SinkNode, SourceNode
from penstock.program.serdes import SerdeLike
from penstock.settings.settings import Settings

from .text import TextSerde


def topic_serdes(
    topic: str, app: str | None, settings: Settings, key: str | None, value: str | None
) -> tuple[TextSerde, TextSerde]:
    """Return the serdes of a topic's keys and values.

    The names given win; then what the application's sources and sinks say about the topic; then its settings.
    """
    said_key, said_value = _said_by(topic, app)
    return (
        TextSerde(key or said_key or settings.key_serde or "str", topic, is_key=True),
        TextSerde(value or said_value or settings.value_serde or "str", topic, is_key=False),
    )


def _said_by(topic: str, app: str | None) -> tuple[SerdeLike, SerdeLike]:
    if app is None:
        return None, None
    from .target import load_program

    program = load_program(app)
    sources = [*program.nodes.values(), *(each.source for each in program.global_stores)]
    for node in sources:
        if (isinstance(node, SourceNode) and topic in node.topics) or (
            isinstance(node, SinkNode) and node.topic == topic
        ):
            return node.key_serde, node.value_serde
    return None, None
