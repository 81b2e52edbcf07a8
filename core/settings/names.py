"""Names of settings: penstock's own, and the names of Kafka Streams and librdkafka, which vocabularies translate."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any, Protocol

from ..errors import ConfigError
from ..hooks import registry

Key = str | tuple[str, str]
"""A setting: the name of one of ours or of a plugin, `(MAPPING, NAME)` such as `("clients", NAME)`, or one of EXTRA."""

MAPPINGS = ("topic_config", "clients", "user")
"""Settings that are mappings: each of their names is a setting by itself, `clients.NAME`."""

EXTRA = ("application_id", "dead_letter_topic")
"""Settings that are no fields of Settings: the id, and the topic to which the handler `skip` sends."""

CLIENT_PREFIXES = ("consumer", "producer", "admin")
"""`consumer.NAME` is a setting of consumers only, and so on; NAME alone is one of all clients of the log."""


class NoCounterpartError(ConfigError):
    """A name of a vocabulary without a counterpart here; the message has the name and the replacement."""


class Vocabulary(Protocol):
    """Names of settings that users know from another system."""

    @property
    def owner(self) -> str:
        """The system that has these names, for messages, e.g. "Kafka Streams"."""
        ...

    @property
    def prefixes(self) -> Sequence[str]:
        """Prefixes that each of `names` may have, e.g. "consumer."."""
        ...

    def names(self) -> Iterable[str]:
        """Return every name without prefixes, for suggestions and for environment variables."""
        ...

    def knows(self, name: str) -> bool:
        """Return whether `name` is one of the vocabulary; it may be one that `names` does not list."""
        ...

    def translate(self, name: str, value: Any) -> tuple[Key, Any] | None:
        """Return our setting that a known `name` sets, and its value; None when that is the case anyway.

        Raises NoCounterpartError for a name that sets nothing here, and ConfigError for a value that cannot be.
        """
        ...


def vocabularies() -> list[Vocabulary]:
    """Return the installed vocabularies by the order of their names: the first one that knows a name translates it."""
    found = registry()
    return [found.load("settings vocabulary", name) for name in found.names("settings vocabulary")]


def translate(name: str, value: Any, own: Collection[str]) -> tuple[Key, Any] | None:
    """Return our setting for a name, and its value; None if that is the default behaviour anyway.

    `own` are the names of all settings. Vocabularies are loaded for other names only. Raises ConfigError for a name
    without counterpart, with the replacement, and for an unknown one, with the nearest names.

    >>> translate("max.task.idle.ms", "-1", ["max_task_idle"])
    ('max_task_idle', None)
    """
    name = name.strip()
    if name in own or name in EXTRA:
        return name, value
    head, _, rest = name.partition(".")
    if head in MAPPINGS and rest:
        return (head, rest), value
    for vocabulary in vocabularies():
        if vocabulary.knows(name):
            try:
                return vocabulary.translate(name, value)
            except NoCounterpartError as error:
                raise ConfigError(str(error)) from None
            except ConfigError as error:
                raise ConfigError(f"setting {name!r}: {error}") from None
    plain = {_plain(each): each for each in (*own, *EXTRA)}
    if _plain(name) in plain:
        return plain[_plain(name)], value
    raise ConfigError(unknown(name, own))


def unknown(name: str, own: Collection[str]) -> str:
    """Return the message about an unknown name."""
    close = nearest(name, own)
    if close:
        return f"unknown setting {name!r}; did you mean {' or '.join(map(repr, close))}?"
    others = " and".join(f" of {vocabulary.owner}" for vocabulary in vocabularies())
    return f"unknown setting {name!r}; known: {', '.join(own)}" + (
        f", and the names{others} (any other setting of the log's clients: clients.NAME)" if others else ""
    )


def nearest(name: str, own: Collection[str]) -> list[str]:
    """Return the names of settings and vocabularies that look most like `name`, however their words are joined."""
    found = vocabularies()
    prefixes = (each for vocabulary in found for each in vocabulary.prefixes)
    prefix = next((each for each in prefixes if flat(name).startswith(flat(each))), "")
    names = [] if prefix else [*own, *EXTRA]
    names += [
        prefix + each for vocabulary in found if prefix in ("", *vocabulary.prefixes) for each in vocabulary.names()
    ]
    rest = flat(name)[len(prefix) :]
    likeness = {each: SequenceMatcher(None, flat(each)[len(prefix) :], rest).ratio() for each in dict.fromkeys(names)}
    best = max(likeness.values())
    close = [each for each, ratio in likeness.items() if ratio > 0.7 and ratio > best - 0.1]
    return sorted(close, key=likeness.__getitem__, reverse=True)[:3]


def _plain(name: str) -> str:
    return re.sub(r"[.-]", "_", name)


def flat(name: str) -> str:
    """Return a name as an environment variable spells it, in lower case.

    >>> flat("consumer.fetch.min.bytes")
    'consumer_fetch_min_bytes'
    """
    return _plain(name.lower())
