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
from penstock.plugins.changelogs import storage
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.testing.contracts.changelog import State, restored

from . import killed_writer
from .killed_writer import delta_of, version_of

_FAR = 10**15
_STATE = {"s": {b"a": b"3", b"b": b"2"}}


def _open(directory: Path) -> DirectoryChangelog:
    return DirectoryChangelog(str(directory), "app", "0_0")


def _files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "app" / "0_0").iterdir())


def _path(directory: Path, start: str) -> Path:
    (path,) = (directory / "app" / "0_0").glob(start)
    return path


def _four_versions(directory: Path) -> DirectoryChangelog:
    """v0 without changes, v1 a=1, v2 b=2, v3 a=3."""
    log = _open(directory)
    log.append({}, None, "v0")
    log.append({"s": [(b"a", b"1")]}, "v0", "v1")
    log.append({"s": [(b"b", b"2")]}, "v1", "v2")
    log.append({"s": [(b"a", b"3")]}, "v2", "v3")
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
    log.snapshot("v3", _entries(_STATE))
    names = _files(tmp_path)
    names.remove("v3.snapshot")
    assert [name.split(".")[:2] for name in names] == [["v0", "-"], ["v1", "v0"], ["v2", "v1"], ["v3", "v2"]]
    for name in names:
        assert (tmp_path / "app" / "0_0" / name).stat().st_size == int(name.split(".")[2])


# ---------------------------------------------------------------- lost and damaged files


def test_a_missing_delta_is_named(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    _path(tmp_path, "v2.*").unlink()
    for have in (None, "v0", "v1", "elsewhere"):
        with pytest.raises(ChangelogError) as caught:
            log.restore("v3", have)
        assert str(caught.value) == (
            f"changelog at {tmp_path}/app/0_0: no way to version v3, because files are lost or damaged: "
            "v2.*.delta (missing). Bring the file back from a backup or from the store's older object versions, or start "
            "on a host that still has a local copy of the state at that version; to give up the state, use a new application id, or `penstock reset`"
        )
    assert restored(log, "v3", "v2", {"v2": {"s": {b"a": b"1", b"b": b"2"}}}) == _STATE


def test_a_truncated_delta_is_named_before_anything_is_restored(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    delta = _path(tmp_path, "v2.*")
    size = delta.stat().st_size
    _cut(delta)
    with pytest.raises(ChangelogError, match=rf"damaged: {delta.name} \({size - 7} bytes instead of {size}\)\. Bring"):
        log.restore("v3", "v1")
    delta.write_bytes(b"")
    with pytest.raises(ChangelogError, match=rf"{delta.name} \(0 bytes instead of {size}\)"):
        log.restore("v3", None)


def test_a_changed_delta_is_named_before_its_step(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    delta = _path(tmp_path, "v2.*")
    _flip(delta)
    one_by_one = DirectoryChangelog(str(tmp_path), "app", "0_0", chunk_bytes=1)
    steps = one_by_one.restore("v3", None).steps
    assert [next(steps)[1], next(steps)[1]] == ["v0", "v1"]
    with pytest.raises(ChangelogError, match=rf"{delta.name} is damaged: the checksum of frame \d does not match"):
        next(steps)
    with pytest.raises(ChangelogError, match="is damaged"):
        list(log.restore("v3", None).steps)


def test_a_damaged_delta_that_a_snapshot_covers_does_no_harm(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    log.snapshot("v2", _entries({"s": {b"a": b"1", b"b": b"2"}}))
    _flip(_path(tmp_path, "v1.*"))
    _path(tmp_path, "v2.*.delta").unlink()
    assert restored(_open(tmp_path), "v3", None, {}) == _STATE


@pytest.mark.parametrize("damage", [_cut, _flip, lambda path: path.write_bytes(b"")])
def test_a_damaged_snapshot_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    log = _four_versions(tmp_path)
    log.snapshot("v2", _entries({"s": {b"a": b"1", b"b": b"2"}}))
    log.clean("v3", 0, _FAR)
    damage(_path(tmp_path, "v2.snapshot"))
    with pytest.raises(ChangelogError, match=r"v2\.snapshot.*(cut off|checksum).*Bring the file back from a backup"):
        list(_open(tmp_path).restore("v3", None).steps)


def test_a_cut_snapshot_is_passed_over_while_older_files_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = _four_versions(tmp_path)
    log.snapshot("v2", _entries({"s": {b"a": b"1", b"b": b"2"}}))
    _cut(_path(tmp_path, "v2.snapshot"))
    with caplog.at_level(logging.WARNING):
        assert restored(_open(tmp_path), "v3", None, {}) == _STATE
    assert "going by older files, because a newer one is damaged: v2.snapshot (it is cut off" in caplog.text


def test_a_changed_snapshot_says_that_older_files_do(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    log.snapshot("v2", _entries({"s": {b"a": b"1", b"b": b"2"}}))
    snapshot = _path(tmp_path, "v2.snapshot")
    _flip(snapshot)
    with pytest.raises(ChangelogError, match="Move v2.snapshot away, and restoring goes by the files before it"):
        list(_open(tmp_path).restore("v3", None).steps)
    snapshot.unlink()
    assert restored(_open(tmp_path), "v3", None, {}) == _STATE


def test_a_lost_or_damaged_file_asks_for_a_snapshot_and_stops_cleaning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = _four_versions(tmp_path)
    assert not log.wants_snapshot()
    _cut(_path(tmp_path, "v1.*"))
    reopened = _open(tmp_path)
    reopened.restore("v3", "v3")
    assert reopened.wants_snapshot()
    before = _files(tmp_path)
    with caplog.at_level(logging.WARNING):
        reopened.clean("v3", 0, _FAR)
    assert _files(tmp_path) == before
    assert "nothing is cleaned until a snapshot mends it" in caplog.text
    reopened.snapshot("v3", _entries(_STATE))
    assert not reopened.wants_snapshot()
    _age(tmp_path / "app" / "0_0")
    reopened.append({}, "v3", "v4")
    reopened.clean("v4", 0, _FAR)
    assert restored(_open(tmp_path), "v4", None, {}) == _STATE
    assert len(_files(tmp_path)) == 2


def test_attempts_that_were_never_committed_ask_for_no_snapshot(tmp_path: Path) -> None:
    log = DirectoryChangelog(str(tmp_path), "app", "0_0", snapshot_floor_bytes=50_000)
    log.append({}, None, "v0")
    assert not log.wants_snapshot()
    for attempt in range(40):
        log.append({"s": [(b"a", b"x" * 1000)]}, "v0", f"v1-{attempt}")
        assert not log.wants_snapshot()
    last = "v0"
    for number in range(8):
        log.append({"s": [(b"a", b"x" * 1000)]}, last, f"v{number}-good")
        last = f"v{number}-good"
        assert not log.wants_snapshot()
    log.append({"s": [(b"a", b"x" * 1000)]}, last, "v9")
    assert log.wants_snapshot()


def test_names_that_go_in_a_circle_end_in_an_error(tmp_path: Path) -> None:
    log = _open(tmp_path)
    log.append({}, "v2", "v1")
    log.append({}, "v1", "v2")
    with pytest.raises(ChangelogError, match="no way to version v2"):
        log.restore("v2", None)


def test_a_lost_folder_is_no_empty_state(tmp_path: Path) -> None:
    with pytest.raises(ChangelogError, match=r"no way to version v3.*v3\.\*\.delta \(missing\)"):
        _open(tmp_path / "nowhere").restore("v3", None)
    assert not (tmp_path / "nowhere").exists()


def test_a_file_deleted_after_it_was_planned_is_named(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    plan = log.restore("v3", None)
    _path(tmp_path, "v0.*").unlink()
    with pytest.raises(ChangelogError, match=r"v0\.-\.\d+\.delta was deleted while it was needed"):
        list(plan.steps)


# ---------------------------------------------------------------- cleaning


def test_clean_leaves_what_is_needed_what_is_young_and_what_is_not_ours(tmp_path: Path) -> None:
    log = _four_versions(tmp_path)
    folder = tmp_path / "app" / "0_0"
    log.append({"s": [(b"orphan", b"1")]}, "v2", "v3-orphan")
    (folder / "v9.v8.30.delta.abcd.tmp").write_bytes(b"half of a del")
    (folder / "notes.txt").write_bytes(b"not ours")
    log.append({"s": [(b"c", b"4")]}, "v3", "v4")
    log.snapshot("v3", _entries(_STATE))
    log.append({}, "v4", "v5")
    everything = _files(tmp_path)
    log.clean("v5", 60_000, SystemClock().now_ms())
    assert _files(tmp_path) == everything
    _age(folder)
    log.clean("v5", 60_000, SystemClock().now_ms() + 120_000)
    assert [name.split(".")[0] for name in _files(tmp_path)] == ["notes", "v3", "v4", "v5"]
    assert "v3.snapshot" in _files(tmp_path)
    assert restored(log, "v5", None, {}) == {"s": {**_STATE["s"], b"c": b"4"}}


def _age(folder: Path) -> None:
    """Set modification times a second apart, in the order in which the files were written."""
    now = time.time_ns()
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for place, path in enumerate(files):
        os.utime(path, ns=(now, now - (len(files) - place) * 1_000_000_000))


def test_a_sleeper_cleans_nothing_of_its_successor(tmp_path: Path) -> None:
    sleeper = _four_versions(tmp_path)
    successor = _open(tmp_path)
    last = "v3"
    for number in range(4, 9):
        successor.append({"s": [(b"n", b"%d" % number)]}, last, f"v{number}")
        last = f"v{number}"
    _age(tmp_path / "app" / "0_0")
    before = _files(tmp_path)
    sleeper.clean("v3", 0, _FAR)
    assert _files(tmp_path) == before
    successor.snapshot("v8", _entries({"s": {**_STATE["s"], b"n": b"8"}}))
    sleeper.clean("v3", 0, _FAR)
    assert _files(tmp_path) == sorted([*before, "v8.snapshot"])


# ---------------------------------------------------------------- places that cannot be written or read


def test_a_place_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    log = _open(tmp_path / "file")
    with pytest.raises(
        ChangelogError, match=rf"changelog at {tmp_path}/file/app/0_0: cannot write delta v0\.-\.\d+\.delta"
    ):
        log.append({}, None, "v0")
    with pytest.raises(ChangelogError, match="cannot list its files: Not a directory"):
        log.restore("v0", None)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EROFS, "Read-only file system; make it readable and writable for this user, or name another place"),
        (errno.EACCES, "Permission denied; make it readable and writable for this user, or name another place"),
        (errno.ENOSPC, "No space left on device; make room there and start again; what was committed before is safe"),
    ],
)
@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_failed_write_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str, call: str
) -> None:
    log = _four_versions(tmp_path)
    before = _files(tmp_path)

    def fails(*arguments: object, **options: object) -> object:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        if call == "open":
            patch.setattr(storage, "open", fails, raising=False)
        else:
            patch.setattr(os, call, fails)
        with pytest.raises(ChangelogError, match=rf"changelog at {tmp_path}/app/0_0: cannot write delta v4.*{advice}"):
            log.append({"s": [(b"a", b"4")]}, "v3", "v4")
        with pytest.raises(ChangelogError, match=rf"cannot write snapshot v3\.snapshot: .*{advice}"):
            log.snapshot("v3", _entries(_STATE))
    assert _files(tmp_path) == before
    log.append({"s": [(b"a", b"4")]}, "v3", "v5")
    assert restored(log, "v5", None, {}) == {"s": {b"a": b"4", b"b": b"2"}}


_FULL = """
import resource, sys
from penstock.plugins.changelogs.directory import DirectoryChangelog
log = DirectoryChangelog(sys.argv[1], "app", "0_0")
log.append({"s": [(b"a", b"1")]}, None, "v0")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for attempt in (
    lambda: log.append({"s": [(b"b", b"x" * 200_000)]}, "v0", "v1"),
    lambda: log.snapshot("v0", (("s", b"%08d" % row, b"x" * 1000) for row in range(10_000))),
):
    try:
        attempt()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_place_that_is_full_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    output = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert len(output) == 2
    for line, what in zip(output, ["delta v1", "snapshot v0"], strict=True):
        assert line.startswith(f"ChangelogError changelog at {tmp_path}/app/0_0: cannot write {what}")
        assert "make room there and start again; what was committed before is safe" in line
    assert [name.split(".")[0] for name in _files(tmp_path)] == ["v0"]
    assert restored(_open(tmp_path), "v0", None, {}) == {"s": {b"a": b"1"}}


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
        writer = subprocess.Popen(
            [sys.executable, killed_writer.__file__, str(tmp_path), str(committed)],
            stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        assert writer.stdout is not None
        wanted = committed + draw.randrange(10, 70)
        for line in writer.stdout:
            committed = int(line)
            if committed >= wanted:
                break
        writer.send_signal(signal.SIGKILL)
        committed = max([committed, *map(int, writer.stdout.read().split())])
        writer.stdout.close()
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
    log.clean(version_of(committed), 0, _FAR)
    assert len(_files(tmp_path)) == 3, "one snapshot and two deltas, and nothing that the killed ones left behind"
