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


def pytest_itemcollected(item: pytest.Item) -> None:
    """Divide the tests that start JVMs among two processes, for two cores.

    One has the session that tests share, the other all drivers in processes of their own and the Kafka brokers: more JVMs at a time only
    slow each other down.
    """
    names = getattr(item, "fixturenames", ())
    for name in ("spark", "broker"):
        if name in names:
            item.add_marker(name)
    if "spark" in names:
        item.add_marker(pytest.mark.xdist_group("spark"))
    elif any(item.get_closest_marker(name) for name in ("spark", "broker")):
        item.add_marker(pytest.mark.xdist_group("processes"))


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
