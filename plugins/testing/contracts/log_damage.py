"""The part of `LogContract` about files that are cut, emptied, lost or have other bytes, and a program that moves."""

from __future__ import annotations

import os
import shutil
from contextlib import chdir, closing
from pathlib import Path
from random import Random

import pytest

from penstock import Commit, ManualClock, OutputBatch

from .child import answer
from .crash_images import CrashImages
from .durability import on_disk
from .expectations import expect
from .log_children import INPUTS, look_at_damage, seen
from .log_processes import ProcessTests
from .log_tests import APPLICATION, everything, output

_VALUES = [Random(number).randbytes(40) for number in range(300)]


class DamageTests(ProcessTests):
    """What is damaged is an error that names it, and never other records or another commit."""

    @pytest.mark.parametrize("damage", ["cut", "emptied", "lost"])
    def test_damaged_files(self, tmp_path: Path, clock: ManualClock, damage: str) -> None:
        """Each is an error that names file, directory, topic or task, or no harm; without its file, it is new."""
        for file, size in self._whole(tmp_path / "whole", clock):
            for number, part in enumerate((0.5, 0.9) if damage == "cut" else (0,)):
                copy = tmp_path / f"copy-{number}-{file.name}"
                shutil.copytree(tmp_path / "whole", copy)
                damaged = copy / file
                damaged.unlink() if damage == "lost" else os.truncate(damaged, int(size * part))
                self._check(copy, clock, damaged, f"{file.name} was {damage}", may_be_new=damage != "cut")

    def test_a_flipped_bit_of_a_record(self, tmp_path: Path, clock: ManualClock) -> None:
        """In a file that has its value as it is: reading it is an error, and its topic is deleted and made again."""
        flipped = 0
        for file, _ in self._whole(tmp_path / "whole", clock):
            data = (tmp_path / "whole" / file).read_bytes()
            for number, value in enumerate(_VALUES[::60]):
                place = data.find(value)
                if place < 0:
                    continue
                flipped += 1
                copy = tmp_path / f"copy-{number}-{file.name}"
                shutil.copytree(tmp_path / "whole", copy)
                damaged, at = copy / file, place + 7 * number
                damaged.write_bytes(data[:at] + bytes([data[at] ^ 1 << number]) + data[at + 1 :])
                where = f"a bit of a record's value was flipped in {file.name}"
                self._check(copy, clock, damaged, where)
                with closing(self.open_log(copy, clock)) as log:
                    try:
                        log.delete_topic("out")
                        log.create_topic("out", 1)
                        log.append(output("out", 3))
                        found = [each.value for each in everything(log, "out")]
                    except Exception as error:
                        raise AssertionError(f"{where}: the topic must be made again, and raised {error!r}") from error
                    expect(found, [b"0", b"1", b"2"], f"{where}: records of the topic that was made again")
        if not flipped:
            pytest.skip("this log keeps no value as it is in its files")

    def test_a_crash_of_the_machine(self, tmp_path: Path, clock: ManualClock) -> None:
        """Whatever part of what is in memory alone is lost when a call has returned: what it wrote is there."""
        children = self.children()
        with on_disk(tmp_path) as place:
            log, disk = self._prepared(place, clock), CrashImages(place)
            committer = log.open_committer(APPLICATION, "0_0", INPUTS)
            for number in range(4):
                committer.commit(Commit({INPUTS[0]: number}, f"v{number}", b"state"), [output("out", 50)])
                log.append(output("side", 20))
                log.put_meta(APPLICATION, "note", b"%d" % number)
                disk.look()
                self._known = seen(log)
                where = "a crash took a part of what was not synced when commit, append and put_meta returned"
                for image in disk.write_images(tmp_path, f"image-{number}"):
                    with children.started(look_at_damage, self.open_log, (image, clock.now_ms())) as connection:
                        expect(answer(connection), self._known, where)
            log.close()

    def test_the_working_directory_changes(self, tmp_path: Path, clock: ManualClock) -> None:
        """Between any two calls, as a program likes: a log stays the one that was opened."""
        for name in ("log", "here", "over/there"):
            (tmp_path / name).mkdir(parents=True)
        with chdir(tmp_path / "here"):
            log = self._prepared(tmp_path / "log", clock)
        with chdir(tmp_path / "over/there"), closing(log):
            committer = log.open_committer(APPLICATION, "0_0", INPUTS)
            committer.commit(Commit({INPUTS[0]: 1}, "v1"), [output("out", 3)])
            log.append(output("out", 2))
            log.put_meta(APPLICATION, "note", b"1")
            log.lease(APPLICATION, "driver", 10_000).release()
            log.maintain(clock.now_ms())
            rule = "the working directory has changed since it was opened"
            expect(len(everything(log, "out")), 5, f"{rule}: records")
            left = [each.name for each in Path().iterdir()]
            assert not left, f"{rule}: it left {left} there"
            if not self.in_one_process:
                with closing(self.open_log(tmp_path / "log", clock)) as other:
                    expect(len(everything(other, "out")), 5, f"{rule}: records that another object reads")
                    expect(other.get_meta(APPLICATION, "note"), b"1", f"{rule}: a note")

    def _whole(self, directory: Path, clock: ManualClock) -> list[tuple[Path, int]]:
        """Write a log; return its files."""
        self.children()
        directory.mkdir()
        log = self._prepared(directory, clock)
        values: list[bytes | None] = list(_VALUES)
        batch = OutputBatch("out", [b"key"] * len(values), values, [1] * len(values))
        log.open_committer(APPLICATION, "0_0", INPUTS).commit(Commit({INPUTS[0]: 5}, "v1", b"state"), [batch])
        log.append(OutputBatch("side", [b"%d" % each for each in range(9)], [b"side"] * 9, [1] * 9))
        log.put_meta(APPLICATION, "note", b"note")
        self._known = seen(log)
        log.close()
        files = [each for each in sorted(directory.rglob("*")) if each.is_file() and each.stat().st_size]
        return [(each.relative_to(directory), each.stat().st_size) for each in files]

    def _check(
        self, directory: Path, clock: ManualClock, damaged: Path, where: str, *, may_be_new: bool = False
    ) -> None:
        work = self.open_log, (directory, clock.now_ms())
        with self.children().started(look_at_damage, *work) as connection:
            try:
                found = answer(connection)
            except EOFError:
                raise AssertionError(f"{where}: opening and reading it ended the process") from None
        if isinstance(found, str):
            names = damaged.name, directory.name, "out", "side", "0_0"
            assert found.startswith("LogError: ") and any(name in found for name in names), (
                f"{where}: expected LogError that names the file, directory, topic or task, found {found}"
            )
        elif found["topics"] or not may_be_new:
            expect(found, self._known, f"{where}: what is read")
