"""The directory changelog in an object store, through pyarrow.fs, and at other locations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from penstock import World
from penstock.errors import ChangelogError
from penstock.plugins.changelogs.directory import DirectoryChangelog, location_and_options
from penstock.plugins.changelogs.storage import ArrowStorage, Storage
from penstock.plugins.engine.program.saved_program import shown_location
from penstock.plugins.testing.contracts.changelog import ChangelogContract
from penstock.plugins.testing.contracts.changelog_tests import restored
from penstock.settings.settings import Settings

from .s3_server import S3Server


def _in_a_renaming_file_system(location: str, *folders: str, world: World) -> Storage:
    root = fs.SubTreeFileSystem(location, fs.LocalFileSystem())
    return ArrowStorage(root, "/".join(folders), location, world=world)


def _renaming(location: str, application_id: str, task_id: str) -> DirectoryChangelog:
    return DirectoryChangelog(location, application_id, task_id, open_storage=_in_a_renaming_file_system)


class TestRenamingFileSystem(ChangelogContract):
    """As HDFS is used: written aside, and renamed."""

    changelog = staticmethod(_renaming)
    examples = 10
    kills = 6
    # pyarrow does not sync local files
    test_an_append_is_on_disk_when_it_returns = None  # type: ignore[assignment]
    test_a_crash_of_the_machine_takes_no_append = None  # type: ignore[assignment]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


class TestObjectStore(ChangelogContract):
    changelog = DirectoryChangelog
    examples = 5
    kills = 6
    test_a_large_snapshot_is_never_in_memory = None  # type: ignore[assignment]  # the store is, in this process

    @pytest.fixture(autouse=True)
    def _server(self, s3: S3Server) -> None:
        self.s3 = s3

    def location(self, directory: Path) -> str:
        return self.s3.uri(f"bucket{directory}")


def _four_versions(location: str) -> DirectoryChangelog:
    log = DirectoryChangelog(location, "app", "0_0")
    log.append({}, None, "0-v")
    for number in range(1, 4):
        log.append({"s": [(b"%d" % number, b"x" * number)]}, f"{number - 1}-v", f"{number}-v")
    return log


_STATE = {"s": {b"%d" % number: b"x" * number for number in range(1, 4)}}


def test_a_chain_in_an_object_store_is_one_listing_and_one_read_for_each_delta(s3: S3Server) -> None:
    location = s3.uri("bucket/chain")
    log = _four_versions(location)
    s3.requests.clear()
    assert restored(log, "3-v", None, {}) == _STATE
    assert s3.requests["LIST"] == 1
    assert s3.requests["GET"] == 4
    assert s3.requests["PUT"] == s3.requests["POST"] == 0
    s3.requests.clear()
    plan = log.restore("3-v", "2-v")
    assert plan.base == "2-v" and len(list(plan.steps)) == 1
    assert (s3.requests["LIST"], s3.requests["GET"]) == (1, 1)


def test_appending_to_an_object_store_asks_for_nothing(s3: S3Server) -> None:
    log = _four_versions(s3.uri("bucket/append"))
    s3.requests.clear()
    log.append({"s": [(b"k", b"v")]}, "3-v", "4-v")
    assert s3.requests["LIST"] == s3.requests["GET"] == s3.requests["DELETE"] == 0


def test_an_object_is_there_whole_or_not_at_all(s3: S3Server) -> None:
    log = _four_versions(s3.uri("bucket/whole"))

    def there() -> list[str]:
        return sorted(path for path in s3.objects if path.startswith("bucket/whole/") and not path.endswith("/"))

    before = there()

    def failing() -> Iterator[tuple[str, bytes, bytes]]:
        for row in range(20):
            yield "s", b"%d" % row, b"x" * 1_000_000
        raise RuntimeError("the store went away")

    with pytest.raises(RuntimeError, match="the store went away"):
        log.snapshot("3-v", failing())
    assert there() == before and len(before) == 4


def test_a_refusing_object_store_is_an_error_that_says_where(s3: S3Server) -> None:
    log = _four_versions(s3.uri("bucket/refuse"))
    s3.refuse = "PUT"
    try:
        with pytest.raises(
            ChangelogError, match=r"changelog at s3://bucket/refuse/app/0_0: cannot write delta 4-v.*ACCESS_DENIED"
        ):
            log.append({"s": [(b"k", b"v")]}, "3-v", "4-v")
    finally:
        s3.refuse = None
    assert restored(log, "3-v", None, {}) == _STATE


def test_a_secret_in_a_location_stays_out_of_messages(s3: S3Server) -> None:
    log = DirectoryChangelog(s3.uri("bucket/secret"), "app", "0_0")
    with pytest.raises(ChangelogError) as caught:
        log.restore("0-v", None)
    assert "changelog at s3://bucket/secret/app/0_0:" in str(caught.value)
    assert "secret@" not in str(caught.value)


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    place = tmp_path / "with space"
    _four_versions(place.as_uri())
    assert restored(DirectoryChangelog(str(place), "app", "0_0"), "3-v", None, {}) == _STATE
    assert len(list((place / "app" / "0_0").glob("*.delta"))) == 1


def test_a_relative_path_is_of_the_directory_it_was_opened_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = DirectoryChangelog("here", "app", "0_0")
    monkeypatch.chdir(os.sep)
    log.append({}, None, "0-v")
    assert len(list((tmp_path / "here" / "app" / "0_0").glob("*.delta"))) == 1


def test_compression_makes_files_smaller_and_either_reads_the_other(tmp_path: Path) -> None:
    rows = [(b"key%06d" % row, b"value") for row in range(1000)]
    plain = DirectoryChangelog(str(tmp_path), "app", "0_0")
    packed = DirectoryChangelog(f"{tmp_path}?compression=zlib", "app", "0_0")
    plain.append({"s": rows}, None, "0-v")
    packed.append({"s": rows}, "0-v", "1-v")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "app" / "0_0").iterdir())]
    assert sizes[1] < sizes[0] / 3
    for log in (plain, packed):
        assert restored(log, "1-v", None, {}) == {"s": dict(rows)}
    with pytest.raises(ChangelogError, match="expected compression=none or zlib, found 'brotli'"):
        DirectoryChangelog(f"{tmp_path}?compression=brotli", "app", "0_0")


def test_sizes_are_options_of_the_location(tmp_path: Path) -> None:
    log = DirectoryChangelog(f"{tmp_path}?segment_bytes=1&snapshot_floor_bytes=9&compression=zlib", "app", "0_0")
    for version in range(3):
        log.append({}, f"{version - 1}-v" if version else None, f"{version}-v")
    assert len(list((tmp_path / "app" / "0_0").glob("*.delta"))) == 3
    assert log.wants_snapshot()
    with pytest.raises(ChangelogError, match="expected segment_bytes=a number of bytes, 1 or more, found '0'"):
        DirectoryChangelog(f"{tmp_path}?segment_bytes=0", "app", "0_0")


def test_other_options_of_a_location_stay() -> None:
    found = location_and_options("s3://bucket/folder?region=here&chunk_bytes=7&scheme=http")
    assert found == ("s3://bucket/folder?region=here&scheme=http", {"chunk_bytes": "7"})
    assert location_and_options("/a place?of=mine") == ("/a place?of=mine", {})


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("ftp://me:secret@host/folder", "Unrecognized filesystem type in URI"),
        ("s3://", "it names no bucket or folder"),
        ("hdfs://", r"\w+"),
    ],
)
def test_a_location_that_cannot_be_opened_is_an_error(location: str, reason: str) -> None:
    scheme = location.partition(":")[0]
    with pytest.raises(
        ChangelogError, match=f"changelog location {scheme}://...: pyarrow cannot open it: {reason}.*expected a path on"
    ) as caught:
        DirectoryChangelog(location, "app", "0_0").restore("0-v", None)
    assert "secret" not in str(caught.value)


def test_an_empty_location_is_an_error() -> None:
    with pytest.raises(ChangelogError, match="expected a path or a URL"):
        DirectoryChangelog("", "app", "0_0")


def test_the_case_of_a_scheme_does_not_matter(tmp_path: Path, s3: S3Server) -> None:
    """FILE: is a path, without pyarrow, and S3: is the object store that s3: is."""
    for place in (tmp_path.as_uri(), s3.uri("bucket/case")):
        other = place.replace("file:", "FILE:").replace("s3:", "S3:")
        _four_versions(other)
        assert restored(DirectoryChangelog(place, "app", "0_0"), "3-v", None, {}) == _STATE
        shown = [shown_location(Settings(changelog=f"directory:{each}")) for each in (place, other)]
        assert shown[0] == shown[1]
    assert not (tmp_path / "FILE:").exists()
