"""The directory changelog when files are lost or damaged, when the place is full, and when the process is killed."""

from __future__ import annotations

import errno
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.errors import ChangelogError
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.testing.contracts.changelog_tests import restored
from penstock.plugins.testing.contracts.expectations import State
from penstock.world import LocalFiles

from ..processes import Child
from . import killed_writer
from .killed_writer import delta_of, version_of

_FAR = 10**15
_STATE = {"s": {b"a": b"3", b"b": b"2"}}


def _open(directory: Path) -> DirectoryChangelog:
    return DirectoryChangelog(str(directory), "app", "0_0")


def _current() -> bool:
    return True


def _files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "app" / "0_0").iterdir())


def _path(directory: Path, start: str) -> Path:
    (path,) = (directory / "app" / "0_0").glob(start)
    return path


def _four_versions(directory: Path) -> DirectoryChangelog:
    """0-v without changes, 1-v a=1, 2-v b=2, 3-v a=3, each in a file of its own, as earlier releases wrote them."""
    previous = None
    for version, rows in [("0-v", []), ("1-v", [(b"a", b"1")]), ("2-v", [(b"b", b"2")]), ("3-v", [(b"a", b"3")])]:
        log = _open(directory)
        log.append({"s": rows} if rows else {}, previous, version)
        previous = version
    return log


def _entries(state: State) -> Iterator[tuple[str, bytes, bytes]]:
    return ((store, key, value) for store, rows in sorted(state.items()) for key, value in sorted(rows.items()))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def test_names_show_the_chain(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    log.snapshot("3-v", _entries(_STATE))
    names = _files(tmp_path)
    names.remove("3-v.snapshot")
    assert [name.split(".")[:2] for name in names] == [["0-v", "-"], ["1-v", "0-v"], ["2-v", "1-v"], ["3-v", "2-v"]]
    for name in names:
        assert (tmp_path / "app" / "0_0" / name).stat().st_size == int(name.split(".")[2])


# ---------------------------------------------------------------- lost and damaged files


def test_a_missing_delta_is_named(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    _path(tmp_path, "2-v.*").unlink()
    for have in (None, "0-v", "1-v", "elsewhere"):
        with pytest.raises(ChangelogError) as caught:
            log.restore("3-v", have)
        assert str(caught.value) == (
            f"changelog at {tmp_path}/app/0_0: no way to version 3-v, because files are lost or damaged: "
            "the file with the delta of 2-v (missing). Bring the file back from a backup or from the store's older "
            "object versions, or start on a host that still has a local copy of the state at that version; to give up "
            "the state, use a new application id, or `penstock reset`"
        )
    assert restored(log, "3-v", "2-v", {"2-v": {"s": {b"a": b"1", b"b": b"2"}}}) == _STATE


def test_a_truncated_delta_is_named_before_anything_is_restored(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    delta = _path(tmp_path, "2-v.*")
    size = delta.stat().st_size
    _cut(delta)
    with pytest.raises(ChangelogError, match=rf"damaged: {delta.name} \({size - 7} bytes instead of {size}\)\. Bring"):
        log.restore("3-v", "1-v")
    delta.write_bytes(b"")
    with pytest.raises(ChangelogError, match=rf"{delta.name} \(0 bytes instead of {size}\)"):
        log.restore("3-v", None)


def test_a_changed_delta_is_named_before_its_step(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    delta = _path(tmp_path, "2-v.*")
    _flip(delta)
    one_by_one = DirectoryChangelog(str(tmp_path), "app", "0_0", chunk_bytes=1)
    steps = one_by_one.restore("3-v", None).steps
    assert [next(steps)[1], next(steps)[1]] == ["0-v", "1-v"]
    with pytest.raises(
        ChangelogError, match=rf"{delta.name} is damaged at byte 0: the checksum of frame \d does not match"
    ):
        next(steps)
    with pytest.raises(ChangelogError, match="is damaged"):
        list(log.restore("3-v", None).steps)


def test_a_damaged_delta_that_a_snapshot_covers_does_no_harm(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    log.snapshot("2-v", _entries({"s": {b"a": b"1", b"b": b"2"}}))
    _flip(_path(tmp_path, "1-v.*"))
    _path(tmp_path, "2-v.*.delta").unlink()
    assert restored(_open(tmp_path), "3-v", None, {}) == _STATE


@pytest.mark.parametrize("damage", [_cut, _flip, lambda path: path.write_bytes(b"")])
def test_a_damaged_snapshot_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    log = _four_versions(tmp_path)
    log.snapshot("2-v", _entries({"s": {b"a": b"1", b"b": b"2"}}))
    log.clean("3-v", 0, _FAR, _current)
    damage(_path(tmp_path, "2-v.snapshot"))
    with pytest.raises(ChangelogError, match=r"2-v\.snapshot.*(cut off|checksum).*Bring the file back from a backup"):
        list(_open(tmp_path).restore("3-v", None).steps)


def test_a_cut_snapshot_is_passed_over_while_older_files_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = _four_versions(tmp_path)
    log.snapshot("2-v", _entries({"s": {b"a": b"1", b"b": b"2"}}))
    _cut(_path(tmp_path, "2-v.snapshot"))
    with caplog.at_level(logging.WARNING):
        assert restored(_open(tmp_path), "3-v", None, {}) == _STATE
    assert "going by older files, because a newer one is damaged: 2-v.snapshot (it is cut off" in caplog.text


def test_a_changed_snapshot_says_that_older_files_do(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    log.snapshot("2-v", _entries({"s": {b"a": b"1", b"b": b"2"}}))
    snapshot = _path(tmp_path, "2-v.snapshot")
    _flip(snapshot)
    with pytest.raises(ChangelogError, match="Move 2-v.snapshot away, and restoring goes by the files before it"):
        list(_open(tmp_path).restore("3-v", None).steps)
    snapshot.unlink()
    assert restored(_open(tmp_path), "3-v", None, {}) == _STATE


def test_a_lost_or_damaged_file_asks_for_a_snapshot_and_stops_cleaning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = _four_versions(tmp_path)
    assert not log.wants_snapshot()
    _cut(_path(tmp_path, "1-v.*"))
    reopened = _open(tmp_path)
    reopened.restore("3-v", "3-v")
    assert reopened.wants_snapshot()
    before = _files(tmp_path)
    with caplog.at_level(logging.WARNING):
        reopened.clean("3-v", 0, _FAR, _current)
    assert _files(tmp_path) == before
    assert "nothing is cleaned until a snapshot mends it" in caplog.text
    reopened.snapshot("3-v", _entries(_STATE))
    assert not reopened.wants_snapshot()
    _age(tmp_path / "app" / "0_0")
    reopened.append({}, "3-v", "4-v")
    reopened.clean("4-v", 0, _FAR, _current)
    assert restored(_open(tmp_path), "4-v", None, {}) == _STATE
    assert len(_files(tmp_path)) == 2


def test_attempts_that_were_never_committed_ask_for_no_snapshot(tmp_path: Path) -> None:
    log = DirectoryChangelog(str(tmp_path), "app", "0_0", snapshot_floor_bytes=27_000)
    log.append({}, None, "0-v")
    assert not log.wants_snapshot()
    for attempt in range(40):
        log.append({"s": [(b"a", b"x" * 1000)]}, "0-v", f"1-v-{attempt}")
        assert not log.wants_snapshot()
    last = "0-v"
    for number in range(8):
        log.append({"s": [(b"a", b"x" * 1000)]}, last, f"{number}-v-good")
        last = f"{number}-v-good"
        assert not log.wants_snapshot()
    log.append({"s": [(b"a", b"x" * 1000)]}, last, "9-v")
    assert log.wants_snapshot()


def test_names_that_go_in_a_circle_end_in_an_error(tmp_path: Path) -> None:
    log = _open(tmp_path)
    log.append({}, "2-v", "1-v")
    log.append({}, "1-v", "2-v")
    with pytest.raises(ChangelogError, match="no way to version 2-v"):
        log.restore("2-v", None)


def test_a_lost_folder_is_no_empty_state(tmp_path: Path) -> None:
    with pytest.raises(ChangelogError, match=r"no way to version 3-v.*the delta of 3-v \(missing\)"):
        _open(tmp_path / "nowhere").restore("3-v", None)
    assert not (tmp_path / "nowhere").exists()


def test_a_file_deleted_after_it_was_planned_is_named(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    plan = log.restore("3-v", None)
    _path(tmp_path, "0-v.*").unlink()
    with pytest.raises(ChangelogError, match=r"0-v\.-\.\d+\.delta was deleted while it was needed"):
        list(plan.steps)


# ---------------------------------------------------------------- cleaning


def test_clean_leaves_what_is_needed_what_is_young_and_what_is_not_ours(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    folder = tmp_path / "app" / "0_0"
    log.append({"s": [(b"orphan", b"1")]}, "2-v", "3-v-orphan")
    (folder / "5-v.4-v.30.delta.abcd.tmp").write_bytes(b"half of a del")
    (folder / "6-v.5-v.30.delta.abcd.tmp").write_bytes(b"the delta that another thread wri")
    (folder / "notes.txt").write_bytes(b"not ours")
    log.append({"s": [(b"c", b"4")]}, "3-v", "4-v")
    log.snapshot("3-v", _entries(_STATE))
    log.append({}, "4-v", "5-v")
    everything = _files(tmp_path)
    log.clean("5-v", 60_000, SystemClock().now_ms(), _current)
    assert _files(tmp_path) == everything
    _age(folder)
    log.clean("5-v", 60_000, SystemClock().now_ms() + 120_000, _current)
    assert [name.split(".")[0] for name in _files(tmp_path)] == ["3-v", "4-v", "5-v", "6-v", "notes"]
    assert "3-v.snapshot" in _files(tmp_path)
    assert restored(log, "5-v", None, {}) == {"s": {**_STATE["s"], b"c": b"4"}}


def _age(folder: Path) -> None:
    """Set modification times a second apart, in the order in which the files were written."""
    now = time.time_ns()
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for place, path in enumerate(files):
        os.utime(path, ns=(now, now - (len(files) - place) * 1_000_000_000))


def test_a_sleeper_cleans_nothing_of_its_successor(tmp_path: Path) -> None:
    sleeper = _four_versions(tmp_path)
    successor = _open(tmp_path)
    last = "3-v"
    for number in range(4, 9):
        successor.append({"s": [(b"n", b"%d" % number)]}, last, f"{number}-v")
        last = f"{number}-v"
    _age(tmp_path / "app" / "0_0")
    before = _files(tmp_path)
    sleeper.clean("3-v", 0, _FAR, _current)
    assert _files(tmp_path) == before
    successor.snapshot("8-v", _entries({"s": {**_STATE["s"], b"n": b"8"}}))
    sleeper.clean("3-v", 0, _FAR, _current)
    assert _files(tmp_path) == sorted([*before, "8-v.snapshot"])


# ---------------------------------------------------------------- places that cannot be written or read


def test_a_place_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    log = _open(tmp_path / "file")
    with pytest.raises(
        ChangelogError, match=rf"changelog at {tmp_path}/file/app/0_0: cannot write delta 0-v\.-\.\d+\.delta"
    ):
        log.append({}, None, "0-v")
    with pytest.raises(ChangelogError, match="cannot list its files: Not a directory"):
        log.restore("0-v", None)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EROFS, r"Read-only file system; make it writable for user \d+, or name another place"),
        (errno.EACCES, r"Permission denied; make it writable for user \d+, or name another place"),
        (
            errno.ENOSPC,
            "No space left on device; the disk is full.*make room there, or name another place.*what was committed "
            "before is safe",
        ),
    ],
)
@pytest.mark.parametrize("call", ["create", "fsync", "replace"])
def test_a_failed_write_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str, call: str
) -> None:
    _four_versions(tmp_path)
    log = _open(tmp_path)
    before = _files(tmp_path)

    def fails(*arguments: object, **options: object) -> object:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles if call == "create" else os, call, fails)
        with pytest.raises(ChangelogError, match=rf"changelog at {tmp_path}/app/0_0: cannot write delta 4-v.*{advice}"):
            log.append({"s": [(b"a", b"4")]}, "3-v", "4-v")
        with pytest.raises(ChangelogError, match=rf"cannot write snapshot 3-v\.snapshot: .*{advice}"):
            log.snapshot("3-v", _entries(_STATE))
    assert _files(tmp_path) == before
    log.append({"s": [(b"a", b"4")]}, "3-v", "5-v")
    assert restored(log, "5-v", None, {}) == {"s": {b"a": b"4", b"b": b"2"}}


_FULL = """
import resource, sys
from penstock.plugins.changelogs.directory import DirectoryChangelog
log = DirectoryChangelog(sys.argv[1], "app", "0_0")
log.append({"s": [(b"a", b"1")]}, None, "0-v")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for attempt in (
    lambda: log.append({"s": [(b"b", b"x" * 200_000)]}, "0-v", "1-v"),
    lambda: log.snapshot("0-v", (("s", b"%08d" % row, b"x" * 1000) for row in range(10_000))),
):
    try:
        attempt()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_place_that_is_full_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    output = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)], capture_output=True, text=True, check=True, timeout=240
    ).stdout.splitlines()
    assert len(output) == 2
    for line, what in zip(output, ["append delta 1-v to 0-v.", "write snapshot 0-v"], strict=True):
        assert line.startswith(f"ChangelogError changelog at {tmp_path}/app/0_0: cannot {what}")
        assert (
            "make room there, or name another place in the setting 'changelog'; what was committed before is safe"
            in line
        )
    assert [name.split(".")[0] for name in _files(tmp_path)] == ["0-v"]
    assert restored(_open(tmp_path), "0-v", None, {}) == {"s": {b"a": b"1"}}


def test_a_version_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    log = _open(tmp_path)
    for version in ("", "a.b", "../up", "a/b", "-", "ä"):
        with pytest.raises(ChangelogError, match="cannot be a file's name"):
            log.append({}, None, version)
        with pytest.raises(ChangelogError, match="cannot be a file's name"):
            log.snapshot(version, iter(()))
    assert not (tmp_path / "app").exists()


# ---------------------------------------------------------------- kill -9


def test_what_was_appended_survives_kill_9(tmp_path: Path) -> None:
    committed, applied = 0, 0
    state: dict[bytes, bytes | None] = {}
    draw = random.Random(5)
    for _ in range(5):
        with Child(killed_writer.__file__, tmp_path, committed) as writer:
            wanted = committed + draw.randrange(10, 70)
            while committed < wanted:
                committed = int(writer.line())
            writer.kill()
            assert writer.stdout is not None
            committed = max([committed, *map(int, writer.stdout.read().split())])
            assert writer.wait() == -signal.SIGKILL
        for number in range(applied + 1, committed + 1):
            state.update(delta_of(number)["s"])
        applied = committed
        expected = {key: value for key, value in state.items() if value is not None}
        assert restored(_open(tmp_path), version_of(committed), None, {}) == {"s": expected}
    log = _open(tmp_path)
    log.snapshot(version_of(committed), _entries({"s": expected}))
    for _ in range(2):
        log.append({}, version_of(committed), version_of(committed + 1))
        committed += 1
    _age(tmp_path / "app" / "0_0")
    log.clean(version_of(committed), 0, _FAR, _current)
    assert len(_files(tmp_path)) == 2, (
        "one snapshot and a file of two deltas, and nothing that the killed ones left behind"
    )
