"""Fixtures for pytest, which finds them where penstock is installed: drivers, applications, a broker."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock import Application, RuntimeUnavailableError, Topology, TopologyBuilder
from penstock.support.packages import needed

from .driver import TopologyTestDriver
from .kafka_broker import KafkaBroker
from .killed_runs import KilledRun, run_with_kills

with needed("the pytest plugin of penstock", "testing"):
    import pytest


@pytest.fixture
def penstock_driver() -> Iterator[Callable[..., TopologyTestDriver]]:
    """Make `TopologyTestDriver`s, with its arguments; each is closed at the end of the test."""
    with ExitStack() as stack:

        def make(program: Topology | TopologyBuilder | Application, **options: Any) -> TopologyTestDriver:
            return stack.enter_context(TopologyTestDriver(program, **options))

        yield make


@pytest.fixture
def penstock_application(tmp_path: Path) -> Callable[..., Application]:
    """Make applications: a program and settings. Each has an id of its own, and its log and data in `tmp_path`."""

    def make(program: Topology | TopologyBuilder, **settings: Any) -> Application:
        name = f"test-{secrets.token_hex(4)}"
        places = {"log": f"local:{tmp_path / 'log'}", "data_dir": str(tmp_path / name)}
        return Application(name, program, **{**places, **settings})

    return make


@pytest.fixture
def penstock_run_with_kills(tmp_path: Path) -> Callable[..., KilledRun]:
    """Run applications while task hosts are killed: an application, records by topic, and options.

    The arguments are those of `penstock.plugins.testing.killed_runs.run_with_kills`.
    """

    def made(application: Application, inputs: Mapping[str, Iterable[Any]], **options: Any) -> KilledRun:
        return run_with_kills(application, inputs, tmp_path / f"kills-{secrets.token_hex(4)}", **options)

    return made


@pytest.fixture(scope="session")
def penstock_broker() -> Iterator[KafkaBroker]:
    """Return a real Kafka broker for all tests of this process; these are skipped where there is no Java."""
    try:
        broker = KafkaBroker()
        broker.start()
    except RuntimeUnavailableError as error:
        pytest.skip(str(error))
    with broker:
        yield broker
