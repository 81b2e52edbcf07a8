"""Names: the rules for topics and stores, names of indexes and functions, and suggestions for a wrong name."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from difflib import get_close_matches
from hashlib import sha256
from typing import Any

BAD_NAME = "a store's name is 1 to 249 letters, digits, '.', '_' or '-', and not '.' or '..'"
"""The message for a store's name that `is_topic_name` refuses: it becomes part of a topic's, as in Kafka Streams."""

LAYOUTS = "-layouts"
"""What follows an application's id in the id of its notes that stay when its commits are deleted."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LONGEST = 249
_INDEX, _TIMERS, _PENDING = ".penstock-index", ".timers", "-pending"


def is_topic_name(name: object) -> bool:
    """Return whether `name` is 1 to 249 letters, digits, '.', '_' or '-', and not '.' or '..'."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in (".", "..")


def index_name(store: str) -> str:
    """Return under which name a backend keeps the index of a store; itself the valid name of a store.

    >>> index_name("seen")
    'seen.penstock-index'
    """
    if len(store) + len(_INDEX) <= _LONGEST:
        return store + _INDEX
    # Two long names may have the same beginning.
    digest = sha256(store.encode()).hexdigest()[:32]
    return f"{store[: _LONGEST - len(digest) - len(_INDEX) - 1]}-{digest}{_INDEX}"


def changelog_topic(application_id: str, store: str) -> str:
    """Return the name of a store's changelog topic, as Kafka Streams forms it."""
    return f"{application_id}-{store}-changelog"


def timer_store_name(node: str) -> str:
    """Return the name of the store that keeps the timers of a node; a node may have any name.

    >>> timer_store_name("sessions"), timer_store_name("a node")
    ('sessions.timers', 'a-node-068486d0.timers')
    """
    return _store_of_node(node, _TIMERS)


def pending_store_name(node: str) -> str:
    """Return the name of the store that keeps the records of a node in flight; a node may have any name.

    >>> pending_store_name("rate"), pending_store_name("a node")
    ('rate-pending', 'a-node-068486d0-pending')
    """
    return _store_of_node(node, _PENDING)


def _store_of_node(node: str, suffix: str) -> str:
    if is_topic_name(node) and len(node) + len(suffix) <= _LONGEST:
        return node + suffix
    digest = sha256(node.encode()).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9._-]', '-', node)[:200]}-{digest}{suffix}"


def function_name(function: Any) -> str:
    """Return a name for a function or callable object that is the same in each run: no addresses."""
    if isinstance(function, functools.partial):
        return f"partial({function_name(function.func)})"
    if hasattr(function, "__qualname__"):
        return f"{function.__module__}.{function.__qualname__}"
    kind: Any = type(function)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return f"{kind.__module__}.{kind.__qualname__}"
    return str(function)


def did_you_mean(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return a question with the known names that resemble a wrong one; "" if none does.

    `least`: minimum similarity, from 0 to 1 (difflib's ratio).

    >>> did_you_mean("ordrs", ["orders", "lines"])
    "did you mean 'orders'?"
    """
    close = get_close_matches(name, list(known), 3, least)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""
