"""Old backups are deleted with the files that no other one needs; a kept one can be restored whatever happens."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest

from penstock import ChangelogError, ConfigError, StoreError, World
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.transfer import task_writer
from penstock.plugins.state.transfer.backups import Catalog, back_up, plan_restore, prune, verify_backup
from penstock.world import LocalFiles, WrittenFile

from .counting import Tasks, counting, send


class KilledError(BaseException):
    """The process ends here."""


class Mortal(LocalFiles):
    """Files of a process that is killed before its change of a name number `at`."""

    def __init__(self, at: int) -> None:
        self.left = at

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KilledError

    def create(self, path: str) -> WrittenFile:
        self._step()
        return super().create(path)

    def replace(self, path: str, by: str) -> None:
        self._step()
        super().replace(path, by)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)


class Meanwhile(Mortal):
    """Files of a process in which something else happens before its change of a name number `at`."""

    def __init__(self, at: int, do: Callable[[], object]) -> None:
        super().__init__(at)
        self._do = do

    def _step(self) -> None:
        self.left -= 1
        if self.left == -1:
            self._do()


class MeanwhileAndKilled(Meanwhile):
    """The same; the process is killed before its change number `at + later`."""

    def __init__(self, at: int, later: int, do: Callable[[], object]) -> None:
        super().__init__(at, do)
        self._later = later

    def _step(self) -> None:
        super()._step()
        if self.left < -self._later:
            raise KilledError


class Backups:
    """An application, a place with backups of it, and what each of them has."""

    def __init__(self, root: Path, changelog: str = "directory:changes?snapshot_floor_bytes=300") -> None:
        self.root, self.log = root, MemoryLog()
        self.place = str(root / "backups")
        self.tasks = Tasks(counting(root, changelog=changelog), self.log)
        self.contents: dict[str, dict[str, dict[bytes, bytes]]] = {}

    def make(self, words: str, *, whole: bool = False) -> str:
        send(self.log, [("a", word) for word in words])
        self.tasks.finish()
        name = back_up(self.tasks.application, self.log, self.place, whole=whole).backup.name
        self.contents[name] = content(self.place, name)
        return name

    def others(self, word: str) -> None:
        """Let another backup be made, and all before it be pruned."""
        self.make(word)
        with suppress(StoreError):  # this may see an entry that is being given up
            prune(Catalog(self.place, "app"), 1)

    def check(self, place: str) -> list[str]:
        """Check that each backup that is listed has all that it had; return their names."""
        names = Catalog(place, "app").names()
        for name in names:
            assert content(place, name) == self.contents[name]
            verify_backup(plan_restore(counting(self.root / "else", "copy"), self.log, place, name=name, of="app"))
        return names


def content(place: str, name: str) -> dict[str, dict[bytes, bytes]]:
    found: dict[str, dict[bytes, bytes]] = {}
    catalog = Catalog(place, "app")
    for folder, version in catalog.read(name).versions.items():
        rows: dict[bytes, bytes | None] = {}
        for changes, _ in catalog.changelog(folder).restore(version, None).steps:
            for store, changed in changes.items():
                rows.update({store.encode() + b"/" + key: value for key, value in changed})
        found[folder] = {key: value for key, value in rows.items() if value is not None}
    return found


def files(place: str) -> set[str]:
    return {str(path.relative_to(place)) for path in Path(place).rglob("*") if path.is_file()}


@pytest.fixture
def made(tmp_path: Path) -> Backups:
    found = Backups(tmp_path)
    for number, words in enumerate(("uvw", "u", "", "vxyz", "xx")):
        found.make(words, whole=number == 3)
    found.tasks.close()
    return found


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_kept_ones_stay_whole_wherever_a_prune_is_killed(made: Backups, keep: int) -> None:
    names = Catalog(made.place, "app").names()
    for at in count():
        place = str(made.root / f"copy-{at}")
        shutil.copytree(made.place, place)
        for path in Path(made.place).rglob("*"):  # to the nanosecond, which `copytree` rounds
            os.utime(place / path.relative_to(made.place), ns=(path.stat().st_mtime_ns,) * 2)
        try:
            prune(Catalog(place, "app", World(files=Mortal(at))), keep)
            is_killed = False
        except KilledError:
            is_killed = True
        assert made.check(place)[-keep:] == names[-keep:]
        gone = prune(Catalog(place, "app"), keep)
        assert made.check(place) == names[-keep:] and is_killed >= bool(gone)
        # Nothing is left of the others, whichever of the two deleted it.
        needed = {f"app/backups/{name}.{end}" for name in names[-keep:] for end in ("json", "claim")}
        left = [each for each in files(place) - needed if each.startswith("app/backups/")]
        assert left == [] or (is_killed and all(".tmp" in each or "pruning-" in each for each in left))
        assert len([each for each in files(place) if "in-transit" in each]) == keep
        if not is_killed:
            break
    assert at >= 5
    before = files(made.place)
    assert len(files(place)) < len(before)


def test_what_a_backup_writes_meanwhile_stays(made: Backups) -> None:
    application = made.tasks.application
    tasks = Tasks(application, made.log)
    send(made.log, [("b", "q")])
    tasks.finish()
    before = files(made.place)
    with pytest.raises(KilledError):
        back_up(application, made.log, made.place, world=World(files=Mortal(7)))
    new = files(made.place) - before
    assert new
    prune(Catalog(made.place, "app"), 1)
    assert new <= files(made.place)
    tasks.close()
    name = back_up(application, made.log, made.place).backup.name
    made.contents[name] = content(made.place, name)
    assert len(made.check(made.place)) == 2
    prune(Catalog(made.place, "app"), 1)
    assert made.check(made.place) == [name]
    assert not [each for each in new & files(made.place) if each.endswith(".tmp") or "in-transit" in each]


@pytest.mark.parametrize("prunes", [False, True])
def test_a_backup_and_a_prune_in_the_middle_of_a_backup_or_a_prune(tmp_path: Path, prunes: bool) -> None:
    """What is listed afterwards is whole; a backup whose files went is given up."""
    made, failures = Backups(tmp_path), list[str]()
    made.make("uv")
    for at in count():
        made.make("u", whole=at % 3 == 0)
        made.make("v")
        files_ = Meanwhile(at, lambda: made.others("w"))
        send(made.log, [("b", "z")])
        made.tasks.finish()
        try:
            if prunes:
                prune(Catalog(made.place, "app", World(files=files_)), 1)
            else:
                application = made.tasks.application
                name = back_up(application, made.log, made.place, whole=True, world=World(files=files_)).backup.name
                made.contents[name] = content(made.place, name)
        except ChangelogError as error:
            failures.append(str(error))
        assert made.check(made.place)
        if files_.left >= 0:
            break
    assert at > 3 and any("were deleted meanwhile" in each for each in failures) != prunes
    made.tasks.close()


@pytest.mark.parametrize("later", [1, 2, 3])
def test_a_backup_that_is_killed_after_a_prune_in_its_middle(tmp_path: Path, later: int) -> None:
    """It is listed only if it is whole; the next prune deletes what it has left."""
    made = Backups(tmp_path)
    made.make("uv")
    for at in count():
        files_ = MeanwhileAndKilled(at, later, lambda: made.others("w"))
        send(made.log, [("b", "z")])
        made.tasks.finish()
        with suppress(KilledError, ChangelogError):
            name = back_up(made.tasks.application, made.log, made.place, world=World(files=files_)).backup.name
            made.contents[name] = content(made.place, name)
        made.check(made.place)
        if files_.left >= 0:
            break
    assert at > 5
    made.make("y")
    prune(Catalog(made.place, "app"), 1)
    left = [each for each in files(made.place) if each.startswith("app/backups/") and ".tmp" not in each]
    assert len(left) == 2
    made.tasks.close()


@pytest.mark.parametrize("later", [1, 100])
def test_a_backup_in_the_middle_of_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int) -> None:
    """Both follow on the same one, and the first is killed: the other stays whole."""
    monkeypatch.setattr(task_writer, "_DELTA_BYTES", 1)
    made = Backups(tmp_path, "directory:changes?chunk_bytes=1")  # each delta is a step
    made.make("uv")
    for at in count():
        for word in "uvw":
            send(made.log, [("a", word)])
            made.tasks.finish()
        files_ = MeanwhileAndKilled(at, later, lambda: made.make("uvw"))
        with suppress(KilledError):
            back_up(made.tasks.application, made.log, made.place, world=World(files=files_))
        for name in Catalog(made.place, "app").names():
            made.contents.setdefault(name, content(made.place, name))
        made.check(made.place)
        if files_.left >= 0:
            break
    assert at > 5
    made.tasks.close()


def test_the_note_of_a_prune_that_was_killed_stays_for_a_day(made: Backups) -> None:
    """Its process may only be frozen: no backup builds on the files that it may delete."""
    names = Catalog(made.place, "app").names()
    newest = Catalog(made.place, "app").read(names[-1])
    for task in ("0_0", "1_0"):
        changelog = Catalog(made.place, "app").changelog(task)
        note = Path(made.place) / "app" / "backups" / f"pruning-{task}"
        note.write_text("\n".join(f"{task}/{file}" for file in changelog.needed(newest.versions[task])))
    send(made.log, [("a", "u"), ("b", "u")])
    tasks = Tasks(made.tasks.application, made.log)
    tasks.finish()
    tasks.close()
    written = back_up(made.tasks.application, made.log, made.place)
    assert set(written.whole) == {"0_0", "1_0"}
    prune(Catalog(made.place, "app"), 9)
    assert note.exists()
    day = 24 * 60 * 60
    os.utime(note, (note.stat().st_atime, note.stat().st_mtime - day - 60))
    prune(Catalog(made.place, "app"), 9)
    assert not note.exists()
    made.contents[written.backup.name] = content(made.place, written.backup.name)
    assert len(made.check(made.place)) == len(names) + 1


def test_backups_of_an_earlier_version_have_no_claims(made: Backups) -> None:
    entries = Path(made.place) / "app" / "backups"
    names = Catalog(made.place, "app").names()
    for path in entries.glob("*.claim"):
        path.unlink()
    assert Catalog(made.place, "app").listed().void == names
    for path in entries.glob("*.json"):
        entry = json.loads(path.read_text())
        del entry["backup"]["claimed"]
        entry["sha256"] = sha256(json.dumps(entry["backup"], sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps(entry))
    assert made.check(made.place) == names
    assert prune(Catalog(made.place, "app"), 2) == names[:-2]
    assert made.check(made.place) == names[-2:]


def test_nothing_is_deleted_while_a_kept_one_is_damaged(made: Backups) -> None:
    names, place = Catalog(made.place, "app").names(), Path(made.place)
    entry = place / "app" / "backups" / f"{names[-1]}.json"
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-20])
    before = files(made.place)
    with pytest.raises(StoreError, match=f"{names[-1]}.json is damaged"):
        prune(Catalog(made.place, "app"), 2)
    entry.write_bytes(whole)
    version = Catalog(made.place, "app").read(names[-1]).versions["1_0"]
    lost = [path for path in (place / "app" / "1_0").iterdir() if path.name.startswith(version)]
    assert lost
    lost[0].rename(place / "away")
    with pytest.raises(ChangelogError, match=f"no way to version {version}"):
        prune(Catalog(made.place, "app"), 2)
    (place / "away").rename(lost[0])
    assert files(made.place) == before
    # A damaged one that goes is in nobody's way.
    (place / "app" / "backups" / f"{names[0]}.json").write_bytes(b"{")
    assert prune(Catalog(made.place, "app"), 4) == names[:1]


def test_the_last_one_always_stays(made: Backups) -> None:
    for keep in (0, -1):
        with pytest.raises(ConfigError, match="--keep: expected 1 or more"):
            prune(Catalog(made.place, "app"), keep)
    assert prune(Catalog(made.place, "other"), 1) == []
    assert prune(Catalog(made.place, "app"), 9) == []
