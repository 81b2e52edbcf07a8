"""The part of `ChangelogContract` about what is around a changelog: other objects and files at its place, the disk."""

from __future__ import annotations

import tempfile
from contextlib import chdir
from pathlib import Path
from random import Random

import pytest

from penstock import ChangelogError, DeltaChangelog
from penstock.store import Changes

from .changelog_tests import ChangelogTests, append_each, clean, commit_of, failing, restored
from .crash_images import CrashImages
from .disk_witness import DiskWitness
from .durability import on_disk
from .expectations import expect
from .histories import State, applied


class PlaceTests(ChangelogTests):
    """Others use the same place, before and after, and the machine may crash."""

    def test_a_crash_of_the_machine_loses_no_name(self, tmp_path: Path) -> None:
        """A file is synced before it gets its name, then its folder; what is new is durable before the old is gone."""
        with DiskWitness(tmp_path) as disk:
            log = self.open(tmp_path)
            for number in range(3):
                previous = f"{number - 1}-v" if number else None
                log.append({"s": [(b"key", b"%d" % number)]}, previous, f"{number}-v")
                disk.check("when append returns, its delta lasts")
        with DiskWitness(tmp_path) as disk:
            log.snapshot("2-v", iter([("s", b"key", b"2")]))
            clean(log, "2-v")
            disk.check("a snapshot lasts before clean deletes what it replaces")
        log.close()

    def test_a_crash_of_the_machine_takes_no_append(self, tmp_path: Path) -> None:
        """Nor the snapshot before it: whatever part of what is in memory alone is lost when a call has returned."""
        if self.in_one_process:
            pytest.skip("this changelog keeps nothing in files")
        with on_disk(tmp_path) as place:
            disk, log = CrashImages(place), self.open(place)
            known: State = {}
            for number in range(6):
                version, previous = f"{number}-v", f"{number - 1}-v" if number else None
                changes: Changes = {"s": [(b"%d" % number, b"v" * 5000), (b"key", b"%d" % number)]}
                log.append(changes, previous, version)
                known = applied(known, changes)
                if not any(each.is_file() for each in place.rglob("*")):
                    pytest.skip("this changelog keeps no files in the directory that it is given")
                if number == 3:
                    log.snapshot(version, iter([("s", *row) for row in sorted(known["s"].items())]))
                disk.look()
                where = (
                    f"a crash of the machine took a part of what was not synced when append of {version} had returned"
                )
                for image in disk.write_images(tmp_path, f"image-{number}"):
                    try:
                        expect(restored(self.open(image), version, None, {}), known, where)
                    except ChangelogError as error:
                        raise AssertionError(f"{where}: {error}") from error
            log.close()

    @pytest.mark.parametrize("beside_writer", [False, True])
    def test_an_object_that_looked_sees_what_others_write(self, tmp_path: Path, beside_writer: bool) -> None:
        """It was opened before another one wrote, and has looked: it looks again."""
        log, early, late = (self.open(tmp_path) for _ in range(3))
        early.beside_writer = late.beside_writer = beside_writer
        with pytest.raises(ChangelogError):
            early.restore("0-v", None)

        def check_restored(reader: DeltaChangelog, target: str, have: str | None, value: bytes, rule: str) -> None:
            known = {} if have is None else {have: {"s": {b"key": have.encode()}}}
            try:
                expect(restored(reader, target, have, known), {"s": {b"key": value}}, f"{rule}: restored from {have}")
            except ChangelogError as error:
                raise AssertionError(f"{rule}: restored from {have}: {error}") from error

        log.append({"s": [(b"key", b"0-v")]}, None, "0-v", commit_of("0-v", 1))
        check_restored(late, "0-v", None, b"0-v", "an object that was opened before another one appended")
        _look(late, "0-v")
        append_each(log, "0-v", "1-v", "2-v")
        log.snapshot("2-v", iter([("s", b"key", b"2-v")]), commit_of("2-v", 3))
        log.append({"s": [(b"key", b"3-v")]}, "2-v", "3-v", commit_of("2-v", 4))
        for rule in ("before another one", "before, and looked, and after that another one"):
            reader = early if rule == "before another one" else late
            rule = f"an object that was opened {rule} appended and wrote a snapshot"
            for have in (None, "0-v", "2-v"):
                check_restored(reader, "3-v", have, b"3-v", rule)
            expect(reader.proven(), {"0-v", "1-v", "2-v"}, f"{rule}: proven")
            expect(reader.beginnings(), {"0-v"}, f"{rule}: beginnings")
            expect(reader.kept("2-v"), commit_of("2-v", 4), f"{rule}: kept")
        log.destroy()
        log.append({"s": [(b"key", b"new")]}, None, "0-w")
        for reader in (early, late):
            rule = "an object that has looked, after another one destroyed the changelog and began anew"
            check_restored(reader, "0-w", None, b"new", rule)
            expect((reader.proven(), reader.beginnings()), (set(), {"0-w"}), rule)

    def test_the_working_directory_changes(self, tmp_path: Path) -> None:
        """Between any two calls, as a program likes: a changelog stays the one that was opened."""
        place, here, there = (tmp_path / name for name in ("place", "here", "over/there"))
        for each in (place, here, there):
            each.mkdir(parents=True)
        with chdir(here):
            log = self.open(place)
            log.append({"s": [(b"key", b"0-v")]}, None, "0-v")
        rule = "the working directory has changed since it was opened"
        with chdir(there):
            append_each(log, "0-v", "1-v")
            log.snapshot("1-v", iter([("s", b"key", b"1-v")]))
            clean(log, "1-v")
            for reader in (log, self.open(place)):
                expect(restored(reader, "1-v", None, {}), {"s": {b"key": b"1-v"}}, rule)
            log.destroy()
            expect(self.open(place).beginnings(), set(), f"destroyed, when {rule}")
            left = [each.name for each in there.iterdir()]
            assert not left, f"{rule}: it left {left} there"
            log.close()

    def test_processes_that_append_once_ask_for_a_snapshot(self, tmp_path: Path) -> None:
        """Each restarts after one commit: the deltas of those before count as well."""
        value = Random(1).randbytes(64 * 1024)
        log = self.open(tmp_path)
        log.append({}, None, "0-v")
        count = 0
        while not log.wants_snapshot():
            count += 1
            assert count < 2000, "128 MB of changes to one key of 64 kB, and no snapshot is wanted"
            log.append({"s": [(b"key", value)]}, f"{count - 1}-v", f"{count}-v")
        log.destroy()
        log.append({}, None, "0-v")
        for number in range(1, 2 * count + 3):
            log.close()
            log = self.open(tmp_path)
            log.restore(f"{number - 1}-v", f"{number - 1}-v")
            log.append({"s": [(b"key", value)]}, f"{number - 1}-v", f"{number}-v")
            if log.wants_snapshot():
                break
        else:
            raise AssertionError(
                f"one process wants a snapshot after {count} deltas, and of {2 * count + 2} processes that append one "
                "each, none does: the deltas that others wrote count, too"
            )
        log.close()

    def test_other_files_are_no_part_of_it(self, tmp_path: Path) -> None:
        """An editor's, a file system's or a backup's, in each of its folders."""
        log = self.open(tmp_path)
        append_each(log, None, "0-v", "1-v")
        log.close()
        for folder in [tmp_path, *(each for each in tmp_path.rglob("*") if each.is_dir())]:
            for name in ("notes.txt", ".nfs00000001", "README", "2-v.bak", "core"):
                (folder / name).write_bytes(b"of somebody else")
            (folder / "lost+found").mkdir()
        rule = "files of others are in its folders"
        try:
            log = self.open(tmp_path)
            expect(restored(log, "1-v", None, {}), {"s": {b"key": b"1-v"}}, rule)
            expect((log.proven(), log.beginnings()), ({"0-v"}, {"0-v"}), rule)
            append_each(log, "1-v", "2-v")
            log.snapshot("2-v", iter([("s", b"key", b"2-v")]))
            clean(log, "2-v")
            expect(restored(self.open(tmp_path), "2-v", None, {}), {"s": {b"key": b"2-v"}}, rule)
            log.destroy()
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{rule}, and it raised {error!r}") from error

    def test_nothing_is_left_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of snapshots that failed or of measuring, in its folder or the temporary one; nothing after `destroy`."""
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setattr(tempfile, "tempdir", None)
        value = Random(1).randbytes(200_000)
        found: list[tuple[int, int]] = []
        for failures in (0, 5):
            place = tmp_path / f"place{failures}"
            place.mkdir()
            log = self.open(place)
            log.append({"s": [(b"key", value)]}, None, "0-v")
            for _ in range(failures):
                with pytest.raises(RuntimeError):
                    log.snapshot("0-v", failing([("s", b"%d" % row, value) for row in range(10)]))
                assert 0 <= log.least_commit_interval() < 60, "least_commit_interval returns some seconds"
            log.snapshot("0-v", iter([("s", b"key", value)]))
            clean(log, "0-v")
            log.close()
            found.append(size_of(place))
        (files, size), (more_files, more_size) = found
        assert more_files <= files and more_size < size + 5_000_000, (
            f"after 5 snapshots that failed and `clean` there are {more_files} files of {more_size:,} bytes, and "
            f"without them {files} of {size:,}"
        )
        random = Random(2)
        sizes = []
        for _ in range(4):
            log = self.open(place)
            log.append({"s": [(b"key", random.randbytes(1_000_000))]}, None, "0-w")
            log.destroy()
            log.close()
            sizes.append(size_of(place)[1])
        assert sizes[-1] < sizes[0] + 1_500_000, (
            f"destroy deletes everything, and leaves more each time, with 1 MB in it: {sizes} bytes"
        )
        left = [each.name for each in temporary.rglob("*")]
        assert not left, f"files are left in the temporary directory: {left[:3]}"

    def test_its_size_is_that_of_its_state(self, tmp_path: Path) -> None:
        """Over a long run with snapshots that `clean` goes by, also where each process makes a few commits."""
        random = Random(1)
        log = self.open(tmp_path)
        log.append({}, None, "0-v")
        sizes: list[int] = []
        for number in range(30):
            previous, version = f"{number}-v", f"{number + 1}-v"
            value = random.randbytes(100_000)
            log.append({"s": [(b"key", value)]}, previous, version)
            log.snapshot(version, iter([("s", b"key", value)]))
            clean(log, version, days=(2 * number, 2 * number + 1))
            if number % 5 == 4:
                log.close()
                sizes.append(size_of(tmp_path)[1])
                log = self.open(tmp_path)
                log.restore(version, version)
        log.close()
        assert sizes[-1] < 2 * sizes[0] + 500_000, (
            f"a state of 100 kB, written 30 times with a snapshot and `clean` each, has {sizes} bytes on disk"
        )


def size_of(directory: Path) -> tuple[int, int]:
    """Return the number of files with content, and their bytes."""
    sizes = [size for file in directory.rglob("*") if file.is_file() and (size := file.stat().st_size)]
    return len(sizes), sum(sizes)


def _look(log: DeltaChangelog, version: str) -> None:
    _ = log.proven(), log.beginnings(), log.wants_snapshot(), log.kept(version)
