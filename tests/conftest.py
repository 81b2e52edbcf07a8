"""Settings that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from penstock.plugins.testing.kafka_broker import KafkaBroker

# A busy machine makes single examples slow; a time limit would make the suite fail at random.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests that start Spark in one process: two sessions on two cores only slow each other down.

    Likewise those that need a Kafka broker and no Spark.
    """
    for item in items:
        for name in ("spark", "broker"):
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(name)
        group = next((name for name in ("spark", "broker") if item.get_closest_marker(name)), None)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The SparkSession of all tests that need one: a process can have only one, and a start takes seconds."""
    from penstock.plugins.spark.session import make_session

    session = make_session("local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """The Kafka broker of all tests in this process that need one. Who kills it starts it again; names are made by `fresh_name`."""
    with KafkaBroker() as broker:
        yield broker
