"""The one SparkSession of these tests, and an application's surroundings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


from .surroundings import Surroundings


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from penstock.plugins.spark.session import make_session

    session = make_session("local[2]")
    yield session
    session.stop()


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        yield made


