"""What tests of runs share."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def free_port() -> int:
    """A port that nobody has, unless somebody takes it in this moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
