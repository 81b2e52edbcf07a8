"""What earlier versions left on a disk is read, and goes on as if this version had written it; and this version still
writes the same bytes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import IncompatibleStateError

from . import saved
from .saved import ARCHIVES, NAMES, Saved


class Fresh:
    """What this version makes of the same records, in a data directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.raw: dict[str, Any] = {}
        self.contents: dict[str, Any] = {}
        with saved.opened(directory) as made:
            made.make()
            for name in NAMES:
                self.raw[name] = made.raw(name)
                self.contents[name] = made.run(name, saved.LAST)
        self._directory = directory

    @cache  # noqa: B019
    def gone_on(self, name: str) -> Any:
        """Return what one application does when it goes on."""
        copy = self._directory.with_name(f"{self._directory.name}-{name}")
        shutil.copytree(self._directory, copy)
        with saved.opened(copy) as made:
            return made.go_on(name)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    return Fresh(tmp_path_factory.mktemp("fresh") / "data")


@pytest.fixture
def archive() -> Path:
    """The newest archive."""
    return ARCHIVES[-1]


@pytest.fixture
def old(archive: Path, tmp_path: Path) -> Iterator[Saved]:
    """The data directory in an archive."""
    saved.unpack(tmp_path, archive)
    with saved.opened(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "archive"),
    [*((name, ARCHIVES[-1]) for name in NAMES), *((name, ARCHIVES[0]) for name in NAMES if name.startswith("dsl"))],
)
@pytest.mark.parametrize("place", ["the host's copy", "the changelog"])
def test_what_was_saved_is_read(old: Saved, fresh: Fresh, name: str, place: str) -> None:
    if place == "the changelog":
        shutil.rmtree(old.directory / "state")
    assert old.run(name, saved.LAST) == fresh.contents[name]
    assert old.go_on(name) == fresh.gone_on(name)


@pytest.mark.parametrize("archive", [ARCHIVES[0]])
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("dsl")])
def test_times_that_were_saved_by_node_are_taken_over_before_the_numbers_change(
    old: Saved, fresh: Fresh, name: str
) -> None:
    with pytest.raises(IncompatibleStateError, match="times of store .*'counts'.*Start the program as it was once"):
        old.run(name, saved.LAST, saved.dsl(in_front=True))
    assert old.run(name, saved.LAST) == fresh.contents[name]
    assert old.go_on(name, saved.dsl(in_front=True)) == fresh.gone_on(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bytes_are_written(old: Saved, fresh: Fresh, name: str) -> None:
    now, before = fresh.raw[name], old.raw(name)
    assert now.keys() == before.keys()
    for store in before:
        assert now[store] == before[store], (
            f"{store} of {name!r} is kept in another format: see tests/upgrades/saved.py"
        )


def test_every_kind_of_store_is_saved(fresh: Fresh) -> None:
    """A new kind of store, or of store of the DSL, is added to tests/upgrades/saved.py."""
    kept = {type(each).__name__ for name in NAMES for each in _stores(name)}
    assert {each.__name__ for each in _all_kinds()} <= kept
    # Deletions of an inner join by foreign key are forgotten when they are answered.
    empty = {store for each in fresh.contents.values() for store, entries in each.items() if entries == []}
    assert empty == {"named-subscription-store-deletions"}


def _stores(name: str) -> list[Any]:
    return list(saved.application(Path("unused"), name).program.stores.values())


def _all_kinds() -> list[type]:
    from penstock.store.specs import StoreSpec

    return [each for each in StoreSpec.__subclasses__() if each.__module__.startswith("penstock")]
