"""Names of topics and applications that nobody else on the broker has."""

from __future__ import annotations

import uuid


def fresh_name(purpose: str) -> str:
    """Return a name for a topic, an application or a group that was not there before."""
    return f"{purpose}-{uuid.uuid4().hex[:12]}"
