"""The simulated disk loses what was not synced; the changelog in a directory loses nothing on it that counts."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Application, Topology, World, versioned_store
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.testing.contracts.changelog_tests import restored
from penstock.plugins.testing.simulation.checks import difference_of_rows
from penstock.plugins.testing.simulation.disk import Disk, HostFiles, LocalState
from penstock.plugins.testing.simulation.host_world import HostDied, Timeline
from penstock.stores.memory import MemoryBackend

from .programs import Versions

randoms = st.randoms(use_true_random=False)


def dies_at(operation: int) -> Callable[..., Any]:
    """Return an edge at which a host dies before its operation of that number, and does nothing from there on."""
    left = operation

    def edge(what: str, call: Callable[[], Any], *_: bool) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise HostDied(what)
        return call()

    return edge


def opened(disk: Disk, machine: int, dies_after: int = 10**9) -> DirectoryChangelog:
    changelog = DirectoryChangelog("/changelog?segment_bytes=400&chunk_bytes=64", "app", "0_0")
    changelog.world = World(files=HostFiles(disk, machine, dies_at(dies_after)))
    return changelog


def append_from(changelog: DirectoryChangelog, first: int, last: int) -> list[int]:
    """Append deltas until the host dies; return those that were appended for certain."""
    appended = []
    try:
        for version in range(first, last + 1):
            before = None if version == 0 else f"{version - 1}-v"
            changelog.append({"s": [(b"%d" % version, b"x" * 150)]}, before, f"{version}-v")
            appended.append(version)
            if version % 3 == 2:
                changelog.snapshot(f"{version}-v", (("s", b"%d" % each, b"x" * 150) for each in range(version + 1)))
    except HostDied:
        pass
    return appended


@given(randoms, st.integers(0, 80))
def test_what_was_appended_outlasts_the_machine_wherever_it_goes_down(random: Random, operation: int) -> None:
    disk = Disk(Timeline(), random)
    appended = append_from(opened(disk, 1, operation), 0, 8)
    disk.lose(1)
    if appended:
        state = restored(opened(disk, 2), f"{appended[-1]}-v", None, {})
        assert sorted(state["s"], key=int) == [b"%d" % each for each in range(appended[-1] + 1)]


@given(randoms, st.integers(0, 10))
def test_a_directory_that_another_machine_made_outlasts_that_machine(random: Random, operation: int) -> None:
    disk = Disk(Timeline(), random)
    append_from(opened(disk, 1, operation), 0, 0)
    appended = append_from(opened(disk, 2), 0, 2)
    disk.lose(1)
    assert len(restored(opened(disk, 2), f"{appended[-1]}-v", None, {})["s"]) == 3


def test_a_changelog_that_was_destroyed_does_not_come_back() -> None:
    """A reset deletes the commits that name its versions next."""
    for seed in range(8):
        disk = Disk(Timeline(), Random(seed))
        changelog = opened(disk, 0)
        append_from(changelog, 0, 2)
        changelog.destroy()
        disk.lose(0)
        assert disk.files() == [], seed


def test_what_is_not_synced_is_lost_torn_or_kept() -> None:
    found = set[bytes | None]()
    for seed in range(200):
        disk = Disk(Timeline(), Random(seed))
        files = HostFiles(disk, 1, dies_at(10**9))
        files.make_directory("/d")
        files.sync_directory("/")
        with pytest.raises(FileNotFoundError):
            files.open_end("/d/f")
        file = files.create("/d/f")
        file.write(memoryview(b"ab"))
        file.sync()
        files.sync_directory("/d")
        file.write(memoryview(b"cd"))
        files.replace("/d/g", by="/d/f")
        disk.lose(2)
        assert files.open("/d/g").read() == b"abcd"
        disk.lose(1)
        (path,) = disk.files()
        found.add(files.open(path).read())
        assert path in ("/d/f", "/d/g")
    assert found == {b"ab", b"abc", b"abcd", b"ab\0\0", b"abc\0"}


def test_a_machine_that_goes_down_takes_back_what_its_stores_wrote_last(tmp_path: Path) -> None:
    state, place = LocalState(tmp_path), tmp_path / "app" / "0_0" / "memory" / "0"
    place.mkdir(parents=True)
    found = Counter[str | None]()
    for seed in range(50):
        backend = MemoryBackend(place, ["s"])
        for version in ("0-v", "1-v", "2-v"):
            backend.write({"s": [(b"key", version.encode())]}, backend.version(), version)
            state.note()
        backend.close()
        state.lose(Random(seed))
        after = MemoryBackend(place, ["s"])
        found[after.version()] += 1
        assert after.get("s", b"key") == (None if after.version() is None else str(after.version()).encode())
        after.destroy()
    assert set(found) == {None, "0-v", "1-v", "2-v"}


@pytest.mark.parametrize("changelog", ["topic:", "directory:/changelog"])
def test_rows_that_another_host_freed_before_its_snapshot_are_no_difference(changelog: str) -> None:
    program, some = Topology().add_source("in", "in"), {("kept", b"old"): b"1"}
    program.add_processor("versions", Versions, "in", stores=[versioned_store("kept", history_retention="2s")])
    application = Application("app", program, changelog=changelog, log="memory:")
    assert difference_of_rows(application, "0_0", {}, some) is None
    is_no_difference = difference_of_rows(application, "0_0", some, {}) is None
    assert is_no_difference == changelog.startswith("directory:")
    assert difference_of_rows(application, "0_0", some, {("kept", b"old"): b"2"}) is not None


def test_a_store_is_gone_with_its_directory(tmp_path: Path) -> None:
    state, place = LocalState(tmp_path), tmp_path / "app" / "0_0" / "memory" / "0"
    place.mkdir(parents=True)
    backend = MemoryBackend(place, ["s"])
    backend.write({}, None, "0-v")
    backend.close()
    state.note()
    assert MemoryBackend(place, ["s"]).version() == "0-v"
    shutil.rmtree(tmp_path / "app")
    state.note()
    assert MemoryBackend(place, ["s"]).version() is None
    MemoryBackend.forget(tmp_path)
