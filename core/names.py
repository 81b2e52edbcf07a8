"""What Kafka takes as the name of a topic, and so what a store may be called."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: object) -> bool:
    """Return whether `name` is 1 to 249 letters, digits, '.', '_' or '-', and not '.' or '..'."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in (".", "..")
