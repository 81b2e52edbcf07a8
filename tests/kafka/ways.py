"""Both ways of the Kafka log to librdkafka: the compiled one and the one in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.plugins.logs.kafka import columns

from ..rotation import of_today

COMPILED = columns._module
WAYS = ("python", "compiled") if COMPILED is not None else ("python",)


@contextmanager
def going(way: str) -> Iterator[None]:
    """Let clients that are made in the block go one of both ways, in this process."""
    before, columns._module = columns._module, COMPILED if way == "compiled" else None
    try:
        yield
    finally:
        columns._module = before


@pytest.fixture(autouse=True, params=of_today(WAYS, 2) or WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run each test one of both ways, tomorrow the other one; both ways where all tests run."""
    with going(request.param):
        yield request.param
        # A client that refuses the plugin would silently go the other way.
        assert request.param == "python" or columns._module is COMPILED
