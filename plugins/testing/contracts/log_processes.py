"""The part of `LogContract` about processes that are killed, replaced or find no room, and about damaged files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import chdir, closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from penstock import ENGINE_STATE_BYTES, Commit, FencedError, Log, LogError, ManualClock, OutputBatch, TopicPartition

from .child import (
    CallStep,
    CleanChildren,
    answer,
    call_until_killed,
    children_for,
    chosen,
    orders,
    outcome_of,
    places_in,
    without_room,
)
from .expectations import CrashImages, expect, expect_durable, expect_no_error, on_disk
from .log_tests import APPLICATION, LogTests, everything, fetches, output

INPUTS = [TopicPartition("in", 0), TopicPartition("in", 1)]
Opener = Callable[[Path, ManualClock], Log]
Work = tuple[Commit, Sequence[OutputBatch]]


def commit_until_killed(
    connection: Connection, opener: Opener, where: tuple[Path, int], works: Sequence[Work], place: CallStep | None
) -> None:
    """Open a task, send its last commit, make the commits, and kill this process at a step of the last one."""
    committer = _opened(opener, where).open_committer(APPLICATION, "0_0", INPUTS)
    connection.send(committer.committed)
    call_until_killed(connection, committer, [("commit", work) for work in works], place)


def change_until_killed(
    connection: Connection, opener: Opener, where: tuple[Path, int], calls: Sequence[Any], place: CallStep | None
) -> None:
    """Call methods of the log, and kill this process at a step of the last call."""
    call_until_killed(connection, _opened(opener, where), calls, place)


def commit_when_told(connection: Connection, opener: Opener, where: tuple[Path, int], task: str) -> None:
    """Open a task, and make each commit that is ordered; send the results."""
    committer = _opened(opener, where).open_committer(APPLICATION, task, INPUTS)
    connection.send(committer.committed)
    for work in orders(connection):
        connection.send(outcome_of(partial(committer.commit, *work), FencedError, LogError, done="committed"))


def hold_a_lease(connection: Connection, opener: Opener, where: tuple[Path, int]) -> None:
    """Take the lease, and hold it until the connection ends."""
    lease = _opened(opener, where).lease(APPLICATION, "driver one", 10_000)
    connection.send("held")
    for _ in orders(connection):
        pass
    lease.release()


def commit_without_room(connection: Connection, opener: Opener, where: tuple[Path, int], work: Work) -> None:
    """Commit while files cannot grow; send the error."""
    committer = _opened(opener, where).open_committer(APPLICATION, "0_0", INPUTS)
    with without_room(where[0]):
        outcome = outcome_of(partial(committer.commit, *work), LogError, done="committed")
    connection.send(outcome)


def look_at_damage(connection: Connection, opener: Opener, where: tuple[Path, int]) -> None:
    """Open a log with damaged files; send its content, or the error."""

    def look() -> dict[str, Any]:
        log = _opened(opener, where)
        return seen(log) if log.topics() else {"topics": []}

    connection.send(outcome_of(look, LogError, with_message=True))


def _opened(opener: Opener, where: tuple[Path, int]) -> Log:
    return opener(where[0], ManualClock(where[1]))


def seen(log: Log) -> dict[str, Any]:
    """Return the content of a log."""
    names = ["in", "out", "side"]
    partitions = [TopicPartition(name, number) for name in names for number in range(log.topic(name).partitions)]
    ends = log.end_offsets(partitions)
    records: dict[str, list[bytes | None]] = {}
    for partition in partitions:
        for batches in fetches(log, partition, 1 << 20):
            records.setdefault(partition.topic, []).extend(value for batch in batches for value in batch.values)
    commit = log.last_commit(APPLICATION, "0_0", INPUTS)
    note = log.get_meta(APPLICATION, "note")
    return {"topics": names, "ends": dict(ends), "records": records, "commit": commit, "note": note}


_KILLS = 60
_VALUES = [Random(number).randbytes(40) for number in range(300)]
_ONE_STEP = "a commit makes outputs, positions, version and engine state visible in one step"


class ProcessTests(LogTests):
    """A returned commit stays, a killed one is whole or absent, and the next process continues."""

    in_one_process: ClassVar[bool] = False
    """Whether no process of a test can be killed in a write (memory ends with it; of a broker, it is the broker's)."""

    def test_a_process_killed_while_it_commits(self, tmp_path: Path, clock: ManualClock) -> None:
        """A killed commit takes place whole or not at all: outputs of all topics, positions, version, engine state."""
        killing = _Killing(self, tmp_path, clock)
        for place in chosen(killing.kill(None), _KILLS):
            killing.kill(place)

    @pytest.mark.parametrize("action", ["append", "create_topic", "put_meta", "set_positions", "open_committer"])
    def test_a_process_killed_while_it_changes_the_log(self, tmp_path: Path, clock: ManualClock, action: str) -> None:
        """Returned calls are kept; a killed call took place whole or not at all, and may be repeated."""
        children = self.children()
        log = self._prepared(tmp_path, clock)
        log.close()
        places: list[CallStep | None] = [None]
        number = 0
        while places:
            place, number = places.pop(0), number + 1
            calls = [_call(action, 2 * number), _call(action, 2 * number + 1)]
            where = f"a process {f'was killed at step {place} of' if place else 'ended after'} {action}"
            work = self.open_log, (tmp_path, clock.now_ms()), calls, place
            with children.started(change_until_killed, *work) as connection:
                expect(answer(connection), "ready", f"{where}: the call before")
                found = places_in(connection, place, action)
            if place is None:
                places = [*chosen(found, _KILLS // 2)]
            log = self.open_log(tmp_path, clock)
            with expect_no_error(f"{where}: the next one must go on"), closing(log):
                self._check_call(log, action, number, where, was_killed=not found)
                if action == "create_topic":
                    log.create_topic(f"again-{number}", 1)
                else:
                    getattr(log, action)(*_call(action, 2 * number + 1)[1])

    def test_an_epoch_outlives_its_process(self, tmp_path: Path, clock: ManualClock) -> None:
        """A replaced process stays fenced after any number of successors."""
        children = self.children()
        self._prepared(tmp_path, clock).close()
        where = tmp_path, clock.now_ms()
        with children.started(commit_when_told, self.open_log, where, "0_0") as zombie:
            expect(answer(zombie), None, "the last commit of a task that has none")
            zombie.send(_work(1))
            expect(answer(zombie), "committed", "the commit of the only process of a task")
            for number in (2, 3, 4):
                with children.started(commit_when_told, self.open_log, where, "0_0") as successor:
                    expect(answer(successor), _work(number - 1)[0], "a successor finds the last commit")
                    if number > 2:
                        successor.send(_work(number))
                        expect(answer(successor), "committed", "the commit of a successor")
                    else:
                        _open_and_commit(self.open_log(tmp_path, clock), number)
                zombie.send(_work(90 + number))
                expect(answer(zombie), "FencedError", f"a commit of a process that {number - 1} others have replaced")
        log = self.open_log(tmp_path, clock)
        expect(log.open_committer(APPLICATION, "0_0", INPUTS).committed, _work(4)[0], "the last commit, after zombies")
        expect(_values(log, "out"), _values_of([_work(number) for number in (1, 2, 3, 4)]), "outputs, after zombies")
        log.close()

    def test_a_lease_is_seen_by_other_processes(self, tmp_path: Path, clock: ManualClock) -> None:
        """One driver runs an application, on whatever host."""
        children = self.children()
        self._prepared(tmp_path, clock).close()
        where = tmp_path, clock.now_ms()
        with children.started(hold_a_lease, self.open_log, where) as holder:
            expect(answer(holder), "held", "a lease of another process")
            log = self.open_log(tmp_path, clock)
            with pytest.raises(LogError, match="driver one"):
                log.lease(APPLICATION, "driver two", 10_000)
        clock.advance("11s")
        log.lease(APPLICATION, "driver two", 10_000).release()
        log.close()

    @pytest.mark.parametrize("action", ["commit", "append"])
    def test_what_has_returned_is_on_disk(self, tmp_path: Path, clock: ManualClock, action: str) -> None:
        """A crash of the machine takes no commit back: others have read it."""
        if self.in_one_process:
            pytest.skip("this log's records are not in files of this process")
        with on_disk(tmp_path) as place:
            log = self._prepared(place, clock)
            committer = log.open_committer(APPLICATION, "0_0", INPUTS)
            random = Random(1)
            for number in range(1, 4):
                batch = OutputBatch("out", [b"key"] * 4, [random.randbytes(1 << 18) for _ in range(4)], [number] * 4)
                if action == "commit":
                    committer.commit(_work(number)[0], [batch])
                else:
                    log.append(batch)
                expect_durable(place, f"{action} must be durable when it returns")
            log.close()

    def test_a_commit_on_a_full_disk(self, tmp_path: Path, clock: ManualClock) -> None:
        """A commit on a full disk raises LogError; the re-opened task finds the last commit or this one."""
        children = self.children()
        log = self._prepared(tmp_path, clock)
        _open_and_commit(log, 1)
        log.close()
        large: list[bytes | None] = [Random(each).randbytes(500_000) for each in range(16)]
        work = _work(2)[0], [OutputBatch("out", [b"key"] * 16, large, [2] * 16)]
        where = "a commit for which there was no room on the disk"
        opened = self.open_log, (tmp_path, clock.now_ms()), work
        with children.started(commit_without_room, *opened) as connection:
            outcome = answer(connection)
        assert outcome in ("committed", "LogError"), f"{where} must raise LogError, and raised {outcome}"
        log = self.open_log(tmp_path, clock)
        found = log.open_committer(APPLICATION, "0_0", INPUTS).committed
        assert found in ([_work(2)[0]] if outcome == "committed" else [_work(1)[0], _work(2)[0]]), (
            f"{where} raised {outcome}: found {found}; {_ONE_STEP}"
        )
        works = [_work(1)] + [work] * (found == work[0])
        expect(_values(log, "out"), _values_of(works), f"{where}: outputs; {_ONE_STEP}")
        _open_and_commit(log, 3)
        expect(_values(log, "out"), _values_of([*works, _work(3)]), f"outputs of the commit after {where}")
        log.close()

    def test_commits_of_real_size(self, log: Log, tmp_path: Path, clock: ManualClock) -> None:
        """Engine states of any bytes, as long as the engine's, with positions of many partitions, and large ones."""
        log.create_topic("in", 120)
        log.create_topic("In.with-all_signs", 1)
        partitions = [TopicPartition("in", number) for number in range(120)] + [TopicPartition("In.with-all_signs", 0)]
        for number, size in enumerate((0, 1, 255, 256, 1000, ENGINE_STATE_BYTES)):
            state = bytes((byte + number) % 256 for byte in range(256)) * (size // 256) + bytes(range(size % 256))
            positions = {partition: (1 << 40) + partition.partition * 7 + number for partition in partitions}
            commit = Commit(positions, f"{number:012d}-{number:08x}_0123abcd-5e6f7890", state)
            committer = log.open_committer(APPLICATION, "12_119", partitions)
            committer.commit(commit, [])
            committer.close()
            log = self.reopen_log(log, tmp_path, clock)
            found = log.open_committer(APPLICATION, "12_119", partitions).committed
            rule = f"a commit with {len(partitions)} positions and {size} bytes of engine state comes back"
            assert found is not None, f"{rule}: nothing was found"
            expect(found.engine_state, state, f"{rule}: engine state")
            expect(dict(found.positions), positions, f"{rule}: positions")
            expect(found.version, commit.version, f"{rule}: version")
        log.close()

    def children(self) -> CleanChildren:
        """Return a starter of processes that have never used the log."""
        if self.in_one_process:
            pytest.skip("no process of a test can be killed in a write of this log")
        return children_for(type(self).__module__)

    def _prepared(self, directory: Path, clock: ManualClock) -> Log:
        log = self.open_log(directory, clock)
        for topic, partitions in (("in", 2), ("out", 1), ("side", 2)):
            log.create_topic(topic, partitions)
        return log

    def _check_call(self, log: Log, action: str, number: int, where: str, *, was_killed: bool) -> None:
        """Compare the content with a returned call, and with one that may have been killed."""
        first, second = 2 * number, 2 * number + 1
        if action == "append":
            found = [value for value in _values(log, "side") if value.startswith((b"%d-" % first, b"%d-" % second))]
            whole = [b"%d-%d" % (each, row) for each in (first, second) for row in range(50)]
            assert found in [sorted(whole)] + [sorted(whole[:50])] * was_killed, (
                f"{where}: of an append of 50 records that returned, and one that may have been killed, {len(found)} "
                "records are there; an append is whole or nothing"
            )
            return
        if action == "create_topic":
            known = log.topics()
            assert f"topic-{first}" in known, f"{where}: a topic whose creation had returned is gone"
            name = f"topic-{second}"
            expect(len(everything(log, f"topic-{first}")), 0, f"{where}: records of a new topic")
            if name in known:
                expect(known[name].partitions, 3, f"{where}: partitions of a topic that is there")
                log.append(output(name, 10))
                expect(len(everything(log, name)), 10, f"{where}: records of a topic whose creation was killed")
            else:
                assert was_killed, f"{where}: the topic is not there"
                log.create_topic(name, 3)
            return
        numbers = (first, second) if was_killed else (second,)
        if action == "put_meta":
            note = log.get_meta(APPLICATION, "note")
            assert note in [b"%d" % each for each in numbers], f"{where}: found the note {note!r}, not of {numbers}"
        if action == "set_positions":
            positions = dict(log.committed(APPLICATION, INPUTS))
            allowed = [dict(zip(INPUTS, (each, each + 1), strict=True)) for each in numbers]
            assert positions in allowed, f"{where}: found positions {positions}, expected one of {allowed}"


class DamageTests(ProcessTests):
    """What is damaged is an error that names it, and never other records or another commit."""

    @pytest.mark.parametrize("damage", ["cut", "emptied", "lost"])
    def test_damaged_files(self, tmp_path: Path, clock: ManualClock, damage: str) -> None:
        """A damaged file causes an error that names it, or no harm; without the file, the log is new."""
        for file, size in self._whole(tmp_path / "whole", clock):
            for number, part in enumerate((0.5, 0.9) if damage == "cut" else (0,)):
                copy = tmp_path / f"copy-{number}-{file.name}"
                shutil.copytree(tmp_path / "whole", copy)
                damaged = copy / file
                damaged.unlink() if damage == "lost" else os.truncate(damaged, int(size * part))
                self._check(copy, clock, damaged, f"{file.name} was {damage}", may_be_new=damage != "cut")

    def test_a_flipped_bit_of_a_record(self, tmp_path: Path, clock: ManualClock) -> None:
        """A flipped bit of a record: reading it is an error, and its topic can be deleted and made again."""
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
                    with expect_no_error(f"{where}: the topic must be made again"):
                        log.delete_topic("out")
                        log.create_topic("out", 1)
                        log.append(output("out", 3))
                        found = [each.value for each in everything(log, "out")]
                    expect(found, [b"0", b"1", b"2"], f"{where}: records of the topic that was made again")
        if not flipped:
            pytest.skip("this log keeps no value as it is in its files")

    def test_a_crash_of_the_machine(self, tmp_path: Path, clock: ManualClock) -> None:
        """After a crash of the machine, the writes of returned calls are there, whichever unsynced data is lost."""
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
        """The program may change the working directory between any two calls: a log stays the opened one."""
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
        return [(file.relative_to(directory), file.stat().st_size) for file in files]

    def _check(
        self, directory: Path, clock: ManualClock, damaged: Path, where: str, *, may_be_new: bool = False
    ) -> None:
        work = self.open_log, (directory, clock.now_ms())
        with self.children().started(look_at_damage, *work) as connection:
            found = answer(connection, f"{where}: opening and reading it")
        if isinstance(found, str):
            names = damaged.name, directory.name, "out", "side", "0_0"
            assert found.startswith("LogError: ") and any(name in found for name in names), (
                f"{where}: expected LogError that names the file, directory, topic or task, found {found}"
            )
        elif found["topics"] or not may_be_new:
            expect(found, self._known, f"{where}: what is read")


def _call(action: str, number: int) -> tuple[str, Any]:
    """Return a method and its arguments, for the call of that number."""
    rows = range(50)
    batch = OutputBatch("side", [b"%d" % row for row in rows], [b"%d-%d" % (number, row) for row in rows], [0] * 50)
    arguments: dict[str, Sequence[Any]] = {
        "append": (batch,),
        "create_topic": (f"topic-{number}", 3),
        "put_meta": (APPLICATION, "note", b"%d" % number),
        "set_positions": (APPLICATION, {INPUTS[0]: number, INPUTS[1]: number + 1}),
        "open_committer": (APPLICATION, "0_0", INPUTS),
    }
    return action, arguments[action]


def _work(number: int) -> Work:
    """Return the commit of that number, with outputs to two topics."""
    version = f"{number:012d}-{number:08x}_0123abcd"
    commit = Commit({INPUTS[0]: number, INPUTS[1]: 10 * number}, version, b"\x00\xffstate %d" % number * 20)
    keys: list[bytes | None] = [b"%d" % row for row in range(20)]
    values: list[bytes | None] = [b"%d-%d" % (number, row) for row in range(20)]
    return commit, [OutputBatch("out", keys, values, [number] * 20), OutputBatch("side", keys, values, [number] * 20)]


def _open_and_commit(log: Log, number: int) -> None:
    committer = log.open_committer(APPLICATION, "0_0", INPUTS)
    committer.commit(*_work(number))
    committer.close()


def _values(log: Log, topic: str) -> list[bytes]:
    return sorted(each.value or b"" for each in everything(log, topic))


def _values_of(works: Sequence[Work], topic: str = "out") -> list[bytes]:
    return sorted(
        value or b"" for _, outputs in works for batch in outputs if batch.topic == topic for value in batch.values
    )


class _Killing:
    """A log whose task is opened by one process after the other; each is killed during a commit."""

    def __init__(self, contract: ProcessTests, directory: Path, clock: ManualClock) -> None:
        self._contract = contract
        self._directory = directory
        self._clock = clock
        self._children = contract.children()
        self._works: list[Work] = []
        self._number = 0
        contract._prepared(directory, clock).close()

    def kill(self, place: CallStep | None) -> list[CallStep]:
        """Let a process commit twice, and kill it at a step of the second; return that one's steps if it survives."""
        first, second = self._next(), self._next()
        where = f"a process {f'was killed at step {place} of' if place else 'ended after'} commit"
        work = self._contract.open_log, (self._directory, self._clock.now_ms()), [first, second], place
        with self._children.started(commit_until_killed, *work) as connection:
            last = self._works[-1][0] if self._works else None
            expect(answer(connection), last, f"{where}: the last commit that it found")
            expect(answer(connection), "ready", f"{where}: the commit before")
            places = places_in(connection, place, "commit")
        with expect_no_error(f"{where}: the next one must open the task and commit"):
            self._check(first, second, where, was_killed=not places)
        return places

    def _check(self, first: Work, second: Work, where: str, *, was_killed: bool) -> None:
        log = self._contract.open_log(self._directory, self._clock)
        committer = log.open_committer(APPLICATION, "0_0", INPUTS)
        found = committer.committed
        assert found in [second[0]] + [first[0]] * was_killed, (
            f"{where}: found the commit {found}, expected {second[0].version}"
            f"{f' or {first[0].version}, each whole' * was_killed}; {_ONE_STEP}, and one that has returned stays"
        )
        self._works += [first] + [second] * (found == second[0])
        self._check_outputs(log, f"{where}, and the commit that counts is {found and found.version}")
        expect(dict(log.committed(APPLICATION, INPUTS)), dict(self._works[-1][0].positions), f"{where}: positions")
        self._works.append(self._next())
        committer.commit(*self._works[-1])
        self._check_outputs(log, f"{where}, and the next one has committed")
        log.close()

    def _check_outputs(self, log: Log, where: str) -> None:
        for topic in ("out", "side"):
            expect(_values(log, topic), _values_of(self._works, topic), f"{where}: outputs in {topic!r}; {_ONE_STEP}")

    def _next(self) -> Work:
        self._number += 1
        return _work(self._number)
