"""The topics of dead letters, and the check that the application does not read one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import ConfigError
from ..processor import DeadLetter, Handler, InFlightOptions, Retry
from ..program.in_flight import async_class
from ..program.nodes import ProcessorNode, SourceNode, decorate
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


def handlers_of(settings: Settings, program: Program) -> Mapping[str, Handler]:
    """Return the handlers of an application by what sets them: its settings, and nodes with a handler of their own."""
    found: dict[str, Handler] = {f"setting {name!r}": getattr(settings, name) for name in HANDLERS}
    for node in program.nodes.values():
        if not isinstance(node, ProcessorNode):
            continue
        kind = async_class(node.supplier)
        given = [each.retries for each in node.options.values() if isinstance(each, InFlightOptions)]
        for retries in (*given, None if kind is None else kind.retries):
            if retries is not None:
                found[f"node {node.name!r}, retries"] = retries
    return found


def check_dead_letters(application_id: str, settings: Settings, program: Program) -> None:
    """Refuse dead letters that the application would read itself: they would fail again, for ever."""
    for where, handler in handlers_of(settings, program).items():
        for topic in dead_letter_topics([handler]):
            reads = _reader(topic, application_id, program)
            if reads is not None:
                raise ConfigError(
                    f"{where}: its dead letters would go to topic {topic!r}, which {reads}: this "
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
