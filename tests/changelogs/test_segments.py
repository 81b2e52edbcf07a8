"""Segments of the directory changelog: several deltas in one file, torn, damaged, rolled over, cleaned and copied."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from penstock import World
from penstock.errors import ChangelogError
from penstock.log import Commit
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.changelogs.file_format import write_delta
from penstock.plugins.changelogs.storage import ArrowStorage, LocalStorage, Storage
from penstock.plugins.testing.contracts.changelog import ChangelogContract
from penstock.plugins.testing.contracts.changelog_tests import restored
from penstock.plugins.testing.contracts.expectations import State
from penstock.record import TopicPartition

from ..rotation import examples
from .s3_server import S3Server

_FAR = 10**15


def _open(directory: Path, segment_bytes: int = 1_000_000) -> DirectoryChangelog:
    return DirectoryChangelog(str(directory), "app", "0_0", segment_bytes=segment_bytes)


def _rolling(location: str, application_id: str, task_id: str) -> DirectoryChangelog:
    return DirectoryChangelog(location, application_id, task_id, segment_bytes=400, chunk_bytes=300)


class TestRolling(ChangelogContract):
    """Segments of a few deltas."""

    changelog = staticmethod(_rolling)
    examples = 15
    kills = 6


def _files(directory: Path) -> list[Path]:
    return sorted((directory / "app" / "0_0").iterdir())


def _version(number: int) -> str:
    return f"{number:012d}-v"


def _append(log: DirectoryChangelog, first: int, last: int) -> None:
    """Append the deltas of these versions; each sets its own key and a common one."""
    for number in range(first, last + 1):
        rows = [(b"last", b"%d" % number), (b"n%04d" % number, b"x" * 20)]
        log.append({"s": rows}, _version(number - 1) if number else None, _version(number))


def _state(number: int) -> State:
    return {"s": {b"last": b"%d" % number, **{b"n%04d" % each: b"x" * 20 for each in range(number + 1)}}}


def _entries(number: int) -> Iterator[tuple[str, bytes, bytes]]:
    return (("s", key, value) for key, value in sorted(_state(number)["s"].items()))


def _current() -> bool:
    return True


def _segment(directory: Path, deltas: int) -> tuple[Path, list[int]]:
    """Write one segment; return it and where each of its deltas begins, with the end of the file."""
    log, ends = _open(directory), [0]
    for number in range(deltas):
        _append(log, number, number)
        (path,) = _files(directory)
        ends.append(path.stat().st_size)
    return path, ends


def test_deltas_of_one_object_are_one_file_under_the_name_of_the_first(tmp_path: Path) -> None:
    path, ends = _segment(tmp_path, 50)
    assert path.name == f"{_version(0)}.-.{ends[1]}.delta"
    for target in (0, 1, 25, 49):
        assert restored(_open(tmp_path), _version(target), None, {}) == _state(target)
    plan = _open(tmp_path).restore(_version(49), _version(20))
    assert plan.base == _version(20)
    (step,) = plan.steps
    assert step[1] == _version(49) and len(step[0]["s"]) == 30


def test_a_file_of_each_delta_is_read_as_before(tmp_path: Path) -> None:
    folder = tmp_path / "app" / "0_0"
    folder.mkdir(parents=True)
    for number in range(5):
        rows = [(b"last", b"%d" % number), (b"n%04d" % number, b"x" * 20)]
        previous = _version(number - 1) if number else None
        data = write_delta({"s": rows}, previous, _version(number))
        (folder / f"{_version(number)}.{previous or '-'}.{len(data)}.delta").write_bytes(data)
    log = _open(tmp_path)
    assert restored(log, _version(4), None, {}) == _state(4)
    _append(log, 5, 9)
    assert len(_files(tmp_path)) == 6
    for have in (None, _version(2), _version(7)):
        known = {_version(each): _state(each) for each in range(10)}
        assert restored(_open(tmp_path), _version(9), have, known) == _state(9)


# ---------------------------------------------------------------- torn and damaged


def test_a_tail_torn_at_any_byte_is_named_and_harmless(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, ends = _segment(tmp_path, 3)
    data = path.read_bytes()
    for length in range(ends[2], ends[3]):
        path.write_bytes(data[:length])
        caplog.clear()
        assert restored(_open(tmp_path), _version(1), None, {}) == _state(1)
        assert (f"{path.name} (damaged at byte {ends[2]}: it is cut off" in caplog.text) == (length > ends[2])
        named = "(missing)" if length == ends[2] else f"{path.name} (damaged at byte {ends[2]}: it is cut off"
        with pytest.raises(ChangelogError) as caught:
            _open(tmp_path).restore(_version(2), None)
        assert f"no way to version {_version(2)}" in str(caught.value) and named in str(caught.value)
    successor = _open(tmp_path)
    successor.restore(_version(1), None)
    _append(successor, 2, 4)
    assert len(_files(tmp_path)) == 2, "nobody appends to a file of another object"
    assert restored(_open(tmp_path), _version(4), None, {}) == _state(4)
    assert _open(tmp_path).proven() == {_version(0), _version(1), _version(2), _version(3)}


def test_any_changed_byte_in_the_middle_is_an_error_that_names_file_and_position(tmp_path: Path) -> None:
    path, ends = _segment(tmp_path, 4)
    data = path.read_bytes()
    for at in range(ends[1], ends[2]):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        with pytest.raises(ChangelogError) as caught:
            _open(tmp_path).restore(_version(3), None)
        assert f"lost or damaged: {path.name} (damaged at byte {ends[1]}: " in str(caught.value)
        assert restored(_open(tmp_path), _version(0), None, {}) == _state(0)


@given(st.lists(st.sampled_from(["delta", "half", "zeros", "magic"]) | st.binary(max_size=40), min_size=1, max_size=4))
@settings(max_examples=examples(25), deadline=None)
def test_garbage_behind_the_last_delta_is_harmless(
    tmp_path_factory: pytest.TempPathFactory, tail: list[str | bytes]
) -> None:
    directory = tmp_path_factory.mktemp("garbage")
    path, ends = _segment(directory, 3)
    data = path.read_bytes()
    pieces = {
        "delta": data[ends[1] : ends[2]],
        "half": data[ends[1] : ends[2] - 9],
        "zeros": b"\0" * 50,
        "magic": b"PENSTOCK",
    }
    path.write_bytes(data + b"".join(pieces[each] if isinstance(each, str) else each for each in tail))
    assert restored(_open(directory), _version(2), None, {}) == _state(2)
    assert _open(directory).proven() >= {_version(0), _version(1)}
    following = _open(directory)
    _append(following, 3, 5)
    assert restored(_open(directory), _version(5), _version(0), {_version(0): _state(0)}) == _state(5)


def test_a_damaged_segment_asks_for_a_snapshot_and_stays_until_then(tmp_path: Path) -> None:
    path, ends = _segment(tmp_path, 6)
    data = bytearray(path.read_bytes())
    data[ends[3] + 30] ^= 1
    path.write_bytes(data)
    log = _open(tmp_path)
    log.restore(_version(5), _version(5))
    assert log.wants_snapshot()
    log.clean(_version(5), 0, _FAR, _current)
    assert path.exists()
    log.snapshot(_version(5), _entries(5))
    assert not log.wants_snapshot()
    _append(log, 6, 6)
    log.clean(_version(6), 0, _FAR, _current)
    assert not path.exists()
    assert restored(_open(tmp_path), _version(6), None, {}) == _state(6)


# ---------------------------------------------------------------- who writes where


def test_a_fenced_process_appends_to_its_own_segment(tmp_path: Path) -> None:
    fenced = _open(tmp_path)
    _append(fenced, 0, 5)
    successor = _open(tmp_path)
    _append(successor, 6, 8)
    for number in (6, 7):
        fenced.append({"s": [(b"wrong", b"1")]}, f"{_version(5)}" if number == 6 else "6-wrong", f"{number}-wrong")
    _append(successor, 9, 10)
    assert len(_files(tmp_path)) == 2
    known = {_version(each): _state(each) for each in range(11)}
    for have in (None, _version(3), _version(7)):
        assert restored(_open(tmp_path), _version(10), have, known) == _state(10)
    assert _open(tmp_path).restore(_version(10), "7-wrong").base is None


def test_a_delta_that_does_not_follow_the_last_one_begins_a_segment(tmp_path: Path) -> None:
    log = _open(tmp_path)
    _append(log, 0, 2)
    log.append({"s": [(b"wrong", b"1")]}, _version(2), "3-wrong")
    _append(log, 3, 5)
    assert [path.name.partition(".")[0] for path in _files(tmp_path)] == [_version(0), _version(3)]
    assert restored(_open(tmp_path), _version(5), None, {}) == _state(5)


@pytest.mark.parametrize("call", ["open", "write", "fdatasync"])
def test_a_failed_append_leaves_the_segment_and_begins_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    log = _open(tmp_path)
    _append(log, 0, 2)
    (path,) = _files(tmp_path)
    before = path.read_bytes()
    write = os.write

    def fails(handle: int, data: bytes = b"", *rest: object) -> int:
        if call == "write" and len(data) > 7:
            return write(handle, data[:7])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        name = "penstock.world.files._sync_data" if call == "fdatasync" else f"os.{call}"
        patch.setattr(name, fails)
        with pytest.raises(
            ChangelogError, match=rf"cannot append delta {_version(3)} to {path.name}: No space left.*make room"
        ):
            _append(log, 3, 3)
    assert path.read_bytes() == before
    _append(log, 3, 5)
    assert len(_files(tmp_path)) == 2 and path.read_bytes() == before
    assert restored(_open(tmp_path), _version(5), None, {}) == _state(5)


@pytest.mark.parametrize("meddle", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-3])])
def test_a_segment_that_is_gone_or_changed_is_an_error(tmp_path: Path, meddle: Callable[[Path], None]) -> None:
    log = _open(tmp_path)
    _append(log, 0, 2)
    (path,) = _files(tmp_path)
    meddle(path)
    with pytest.raises(
        ChangelogError, match=rf"cannot append delta {_version(3)} to {path.name}: (No such|it has \d+ bytes)"
    ):
        _append(log, 3, 3)
    _append(log, 3, 3)
    with pytest.raises(ChangelogError, match=r"no way to version .*(\(missing\)|damaged at byte)"):
        _open(tmp_path).restore(_version(3), None)


# ---------------------------------------------------------------- rolling over, cleaning


def test_a_segment_ends_at_its_size_and_at_a_snapshot(tmp_path: Path) -> None:
    log = _open(tmp_path, segment_bytes=1000)
    _append(log, 0, 39)
    sizes = [path.stat().st_size for path in _files(tmp_path)]
    assert len(sizes) > 3 and all(1000 <= size < 1300 for size in sizes[:-1])
    log.snapshot(_version(39), _entries(39))
    _append(log, 40, 41)
    assert _files(tmp_path)[-1].name.startswith(f"{_version(40)}.{_version(39)}.")
    known = {_version(each): _state(each) for each in range(42)}
    for have in (None, _version(5), _version(40)):
        assert restored(_open(tmp_path), _version(41), have, known) == _state(41)
    log.clean(_version(41), 0, _FAR, _current)
    assert [path.suffix for path in _files(tmp_path)] == [".snapshot", ".delta"]
    assert restored(_open(tmp_path), _version(41), None, {}) == _state(41)


def test_a_segment_with_a_version_above_stays(tmp_path: Path) -> None:
    """As for a Spark pipeline, which may go back to a version that is not the newest."""
    log = _open(tmp_path)
    _append(log, 0, 9)
    log.snapshot(_version(5), _entries(5))
    log.clean(_version(5), 0, _FAR, _current)
    assert restored(_open(tmp_path), _version(9), None, {}) == _state(9)
    log.clean(_version(9), 0, _FAR, _current)
    log.snapshot(_version(9), _entries(9))
    log.clean(_version(9), 0, _FAR, _current)
    assert [path.name for path in _files(tmp_path)] == [f"{_version(9)}.snapshot"]


def test_a_segment_that_is_damaged_for_a_while_keeps_its_later_deltas(tmp_path: Path) -> None:
    log = _open(tmp_path)
    _append(log, 0, 9)
    [path], whole = _files(tmp_path), _files(tmp_path)[0].read_bytes()
    log.snapshot(_version(2), _entries(2))
    _append(log, 10, 10)
    path.write_bytes(whole[: len(whole) // 8])
    log.clean(_version(2), 0, _FAR, _current)
    assert path.exists()
    path.write_bytes(whole)
    assert restored(_open(tmp_path), _version(10), None, {}) == _state(10)


def test_within_the_grace_period_nothing_but_the_newest_segment_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _open(tmp_path, segment_bytes=1000)
    _append(log, 0, 99)
    log.snapshot(_version(99), _entries(99))
    _append(log, 100, 103)
    opened: list[str] = []
    really = LocalStorage.open

    def noted(self: LocalStorage, name: str, start: int = 0) -> object:
        opened.append(name)
        return really(self, name, start)

    monkeypatch.setattr(LocalStorage, "open", noted)
    log.wants_snapshot()
    log.clean(_version(103), 60_000, 0, _current)
    list(_open(tmp_path).restore(_version(103), _version(101)).steps)
    list(_open(tmp_path).restore(_version(103), None).steps)
    assert {name.partition(".")[0] for name in opened} == {_version(100), _version(99)}
    assert len(_files(tmp_path)) > 10


def test_commits_in_the_middle_of_a_segment_are_kept(tmp_path: Path) -> None:
    log = _open(tmp_path)

    def commit(number: int) -> Commit:
        return Commit({TopicPartition("in", 0): number}, _version(number), b"%d" % number)

    log.append({}, None, _version(0), commit(0))
    for number in range(1, 6):
        log.append({}, _version(number - 1), _version(number), commit(number - 1))
    reopened = _open(tmp_path)
    assert reopened.proven() == {_version(number) for number in range(5)}
    assert [reopened.kept(_version(number)) for number in range(6)] == [*map(commit, range(5)), None]
    assert reopened.beginnings() == {_version(0)}


# ---------------------------------------------------------------- places that cannot append


def _in_a_renaming_file_system(location: str, *folders: str, world: World) -> Storage:
    return ArrowStorage(fs.SubTreeFileSystem(location, fs.LocalFileSystem()), "/".join(folders), location, world=world)


def test_segments_that_were_copied_to_a_place_that_cannot_append_are_read_there(tmp_path: Path) -> None:
    log = _open(tmp_path)
    _append(log, 0, 9)
    log.snapshot(_version(4), _entries(4))
    there = DirectoryChangelog(str(tmp_path), "app", "0_0", open_storage=_in_a_renaming_file_system)
    for have in (None, _version(6)):
        known = {_version(each): _state(each) for each in range(10)}
        assert restored(there, _version(9), have, known) == _state(9)
    _append(there, 10, 12)
    assert len(_files(tmp_path)) == 5, "a file of each delta"
    there.clean(_version(12), 0, _FAR, _current)
    assert len(_files(tmp_path)) == 5
    assert restored(there, _version(12), None, {}) == _state(12)


def test_the_commit_interval_is_two_uploads_or_more(tmp_path: Path) -> None:
    with S3Server() as s3:
        log = DirectoryChangelog(s3.uri("bucket/interval"), "app", "0_0")
        least = log.least_commit_interval()
        assert 0 < least < 10
        assert not [path for path in s3.objects if path.startswith("bucket/interval/") and path[-1] != "/"]
        s3.refuse = "PUT"
        with pytest.raises(ChangelogError, match="s3://bucket/interval/app/0_0: cannot write upload"):
            log.least_commit_interval()
    local = _open(tmp_path)
    assert local.least_commit_interval() == 0 and not (tmp_path / "app").exists()


def test_a_process_that_woke_up_gives_no_advice_about_what_its_successor_has_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = _open(tmp_path)
    _append(there, 0, 5)
    for path in _files(tmp_path):
        path.unlink()
    there.clean(_version(5), 0, _FAR, lambda: False)
    assert not caplog.messages
    there.clean(_version(5), 0, _FAR, _current)
    assert "nothing is cleaned until a snapshot mends it" in caplog.text
