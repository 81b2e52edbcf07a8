"""Settings of topics, as users give them: by Kafka's names, with values that become text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError

TopicConfig = Mapping[str, str | int | float | bool]
"""Settings of a topic by Kafka's names, such as {"segment.bytes": 1_000_000}."""


def checked_topic_config(what: str, given: Any) -> dict[str, str]:
    """Return settings of topics as text. Raises ConfigError, which begins with `what`, for other values."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{what}: expected a mapping of topic settings such as {{'segment.bytes': 1000000}}, found {given!r}"
        )
    return {name: client_text(what, name, value, "segment.bytes") for name, value in given.items()}


def client_text(what: str, name: Any, value: Any, example: str) -> str:
    """Return a value as Kafka's clients take it. Raises ConfigError for a name or a value that cannot be one."""
    if not isinstance(name, str) or not name.strip("."):
        raise ConfigError(f"{what}: expected names like {example!r}, found {name!r}")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ConfigError(f"{what}: {name!r}: expected text, a number or a boolean, found a {type(value).__name__}")
