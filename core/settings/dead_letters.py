"""The topics of dead letters, and the check that the application does not read one of them."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ConfigError
from ..handlers import DeadLetter, Handler, Retry
from ..program.nodes import SourceNode, decorate
from ..program.program import Program
from .settings import HANDLERS, Settings


def dead_letter_topics(handlers: Iterable[Handler]) -> tuple[str, ...]:
    """Return the topics that handlers send to, as far as they say so: `DeadLetter`, also behind `Retry`."""
    topics = []
    for handler in handlers:
        while isinstance(handler, Retry):
            handler = handler.then
        if isinstance(handler, DeadLetter):
            topics.append(handler.topic)
    return tuple(dict.fromkeys(topics))


def check_dead_letters(application_id: str, settings: Settings, program: Program) -> None:
    """Refuse dead letters that the application would read itself: they would fail again, for ever."""
    for handler in HANDLERS:
        for topic in dead_letter_topics([getattr(settings, handler)]):
            reads = _reader(topic, application_id, program)
            if reads is not None:
                raise ConfigError(
                    f"setting {handler!r}: its dead letters would go to topic {topic!r}, which {reads}: this "
                    "application would process them again, and again when they fail; name another topic (`penstock dlq "
                    "replay` sends dead letters back)"
                )


def _reader(topic: str, application_id: str, program: Program) -> str | None:
    for node in program.nodes.values():
        if isinstance(node, SourceNode):
            if topic in {decorate(application_id, each, program.internal_topics) for each in node.topics}:
                return f"source {node.name!r} reads"
            if node.pattern is not None and node.pattern.fullmatch(topic):
                return f"source {node.name!r} reads (pattern {node.pattern.pattern!r})"
    return None
