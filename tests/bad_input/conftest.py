"""Fixtures of the tests of bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Topology
from penstock.plugins.changelogs.directory import DirectoryChangelog

from .world import ORDERS, Contents, MakeWorld, World, totals


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    """Make worlds, each in a directory of its own."""
    count = 0

    def make(topology: Topology | None = None, **settings: Any) -> World:
        nonlocal count
        count += 1
        return World(tmp_path / f"world-{count}", topology or totals(), **settings)

    return make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """The program `totals`, not started yet, with good records in its topic."""
    world = make_world()
    world.produce("orders", *ORDERS)
    return world


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """What `world` comes to when nothing is wrong."""
    twin = World(tmp_path_factory.mktemp("undisturbed") / "world", totals())
    twin.produce("orders", *ORDERS)
    twin.run()
    return twin.contents()


@pytest.fixture
def a_file_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the directory changelog write each delta into a file of its own, as where nothing can be appended."""
    defaults = DirectoryChangelog.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "segment_bytes", 1)
