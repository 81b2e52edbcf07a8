"""The PostgreSQL server of the tests of sinks, and a log in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import Log
from penstock.plugins.logs.memory import MemoryLog

from ..sinks.conftest import own_postgres, postgres, shared_postgres

__all__ = ["own_postgres", "postgres", "shared_postgres"]


@pytest.fixture
def log() -> Iterator[Log]:
    made = MemoryLog()
    yield made
    made.close()
