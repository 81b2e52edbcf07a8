"""Files, commits and records that were lost: what is missing is named, nothing starts empty, and what is put back is
enough."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import ChangelogError, IncompatibleStateError, LogError, OffsetOutOfRangeError, TopicPartition
from penstock.log import Commit
from penstock.plugins.changelogs.directory import DirectoryChangelog

from .world import ORDERS, Contents, MakeWorld, World, says

# ---------------------------------------------------------------- the changelog


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def deleted(path: Path) -> None:
    path.unlink()


Damage = Callable[[Path], None]
DAMAGES = [truncated, emptied, flipped, deleted]


def in_the_chain(world: World) -> list[Path]:
    """The changelog's files of task 0_0, oldest first, one a commit; the task made one for each of five records."""
    files = sorted((world.changelog / "shop" / "0_0").iterdir())
    assert len(files) == 6
    return files


def mentions(error: object, world: World, path: Path, damage: Damage) -> None:
    """Assert that the message names the file: in full, or by its version where the file is gone."""
    version = path.name.partition(".")[0]
    name = f"the file with the delta of {version} (missing)" if damage is deleted else path.name
    says(error, f"changelog at {world.changelog}/shop/0_0: ", name, "Bring the file back from a backup")
    says(error, "a host that still has a local copy of the state at that version", "use a new application id")


@pytest.mark.usefixtures("a_file_each")
@pytest.mark.parametrize(
    ("which", "damage"),
    [*((3, damage) for damage in DAMAGES), (0, deleted), (0, flipped), (5, deleted), (5, truncated)],
)
def test_a_delta_that_is_damaged(world: World, undisturbed: Contents, which: int, damage: Damage) -> None:
    world.run()
    world.forget_state()
    path = in_the_chain(world)[which]
    original = path.read_bytes()
    damage(path)
    for _ in range(2):
        with pytest.raises(ChangelogError) as caught:
            world.run()
        mentions(caught.value, world, path, damage)
    path.write_bytes(original)
    world.run()
    assert world.contents() == undisturbed


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_segment_that_is_damaged(world: World, undisturbed: Contents, damage: Damage) -> None:
    """All deltas of the task are in one file."""
    world.run()
    world.forget_state()
    (path,) = (world.changelog / "shop" / "0_0").iterdir()
    original = path.read_bytes()
    damage(path)
    for _ in range(2):
        with pytest.raises(ChangelogError) as caught:
            world.run()
        says(caught.value, f"changelog at {world.changelog}/shop/0_0: no way to version 000000000005-")
        if damage is deleted:
            says(caught.value, "the file with the delta of 000000000005-", "(missing)")
        else:
            says(caught.value, path.name, "(0 bytes instead of" if damage is emptied else "(damaged at byte ")
    path.write_bytes(original)
    world.run()
    assert world.contents() == undisturbed


@pytest.mark.usefixtures("a_file_each")
@pytest.mark.parametrize("damage", [truncated, deleted])
def test_a_delta_that_is_damaged_while_a_local_copy_is_there(world: World, damage: Damage) -> None:
    """The next commit mends the changelog: a snapshot of the local copy is written."""
    world.run()
    damage(in_the_chain(world)[3])
    world.produce("orders", ("bob", "1"))
    world.run()
    assert len(snapshots(world)) == 1
    assert world.contents().stores == {("0_0", "totals"): [("ann", 16), ("bob", 8)], ("0_1", "totals"): [("dan", 1)]}


def test_a_changelog_that_is_gone(world: World, undisturbed: Contents, tmp_path: Path) -> None:
    world.run()
    world.forget_state()
    world.changelog.rename(tmp_path / "elsewhere")
    with pytest.raises(ChangelogError) as caught:
        world.run()
    says(
        caught.value,
        f"changelog at {world.changelog}/shop/0_0: no way to version 000000000005-",
        "files are lost or damaged: ",
        "(missing)",
    )
    shutil.rmtree(world.changelog, ignore_errors=True)
    (tmp_path / "elsewhere").rename(world.changelog)
    assert world.contents() == undisturbed


@pytest.fixture
def eager_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a snapshot whenever the deltas weigh more than it, however little that is."""
    defaults = DirectoryChangelog.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "snapshot_floor_bytes", 1)


def snapshots(world: World) -> list[Path]:
    return sorted((world.changelog / "shop" / "0_0").glob("*.snapshot"))


@pytest.mark.usefixtures("eager_snapshots")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_snapshot_that_is_damaged(world: World, undisturbed: Contents, damage: Damage) -> None:
    world.change(changelog_grace="0ms")
    world.run()
    (snapshot,) = snapshots(world)
    deltas = sorted((world.changelog / "shop" / "0_0").glob("*.delta"))
    for path in deltas:  # what a clean-up leaves behind once the grace is over
        path.unlink()
    original = snapshot.read_bytes()
    damage(snapshot)
    world.forget_state()
    with pytest.raises(ChangelogError) as caught:
        world.run()
    says(caught.value, f"changelog at {world.changelog}/shop/0_0: ")
    says(caught.value, snapshot.name if damage is not deleted else snapshot.stem, "Bring the file back from a backup")
    snapshot.write_bytes(original)
    assert world.contents() == undisturbed


@pytest.mark.usefixtures("eager_snapshots")
def test_a_damaged_snapshot_that_deltas_make_needless(
    world: World, undisturbed: Contents, caplog: pytest.LogCaptureFixture
) -> None:
    world.run()
    (snapshot,) = snapshots(world)
    truncated(snapshot)
    world.forget_state()
    world.run()
    says(
        caplog.text,
        f"changelog at {world.changelog}/shop/0_0: going by older files, because a newer one is damaged: "
        f"{snapshot.name}",
    )
    assert world.contents() == undisturbed


def test_files_that_are_not_ours_do_no_harm(world: World, undisturbed: Contents) -> None:
    world.run()
    directory = world.changelog / "shop" / "0_0"
    for name in ("notes.txt", ".DS_Store", "000000000009-aaaaaaaa.delta.tmp", "x.snapshot~"):
        (directory / name).write_bytes(b"?")
    assert world.contents() == undisturbed


# ---------------------------------------------------------------- local copies


@pytest.mark.parametrize("part", [None, 0.05, 0.5, 0.75], ids=["overwritten", "almost gone", "half", "three quarters"])
def test_a_damaged_local_copy_is_rebuilt(
    world: World, undisturbed: Contents, caplog: pytest.LogCaptureFixture, part: float | None
) -> None:
    world.run()
    copy = world.state / "shop" / "0_0" / "lmdb" / "0"
    original = (copy / "data.mdb").read_bytes()
    (copy / "data.mdb").write_bytes(b"?" * len(original) if part is None else original[: int(len(original) * part)])
    world.run()
    says(caplog.text, f"store directory {copy}: ", "; it is rebuilt")
    assert world.contents() == undisturbed


@pytest.mark.parametrize("restored", [False, True])
def test_a_local_copy_of_another_time(world: World, undisturbed: Contents, tmp_path: Path, restored: bool) -> None:
    """A copy that is behind catches up; one that is ahead of a log that was set back is not believed."""
    world.run()
    shutil.copytree(world.directory, tmp_path / "earlier")
    world.produce("orders", *ORDERS)
    world.run()
    later = world.contents()
    world.run()
    if restored:
        shutil.rmtree(world.log)
        shutil.copytree(tmp_path / "earlier" / "log", world.log)
        assert world._contents() == undisturbed
    else:
        world.forget_state()
        shutil.copytree(tmp_path / "earlier" / "state", world.state)
        assert world._contents() == later


# ---------------------------------------------------------------- the log


def test_a_damaged_log(world: World, undisturbed: Contents) -> None:
    world.run()
    data = world.log / "data.mdb"
    original = data.read_bytes()
    for damaged in (
        b"?" * len(original),
        original[:5000],
        original[: len(original) // 2],
        original[:50_000] + bytes(len(original) - 50_000),
    ):
        data.write_bytes(damaged)
        with pytest.raises(LogError) as caught:
            world.run()
        says(caught.value, f"local log {world.log}: ", "data.mdb is damaged")
        says(str(caught.value).lower(), "restore it from a copy, or move the directory away to start with an empty log")
    data.write_bytes(original)
    assert world.contents() == undisturbed


def test_a_log_that_is_another_one(world: World, make_world: MakeWorld, undisturbed: Contents) -> None:
    """The state of an application that the log knows nothing of is not taken, and not overwritten either."""
    first = world.run()[0]
    before = world.contents()
    other = make_world()
    shutil.move(world.log, world.directory / "log-aside")
    shutil.copytree(other.log, world.log)
    with world.workers() as (_, workers), pytest.raises(IncompatibleStateError) as caught:
        workers[0].run_batch({}, 0, Commit(first.positions, first.version))
    says(
        caught.value, "application 'shop', task 0_0: Spark's checkpoint knows a commit (state version " f"{first.version}), but the log has none: ",
        "or this is another log. ", "`penstock reset --from-state --dry-run`",
    )  # fmt: skip
    shutil.rmtree(world.log)
    shutil.move(world.directory / "log-aside", world.log)
    with world.workers() as (_, workers):
        workers[0].run_batch({}, 0, Commit(first.positions, first.version))
    assert world.contents() == before == undisturbed


def test_a_log_that_lost_its_last_commits(world: World, tmp_path: Path) -> None:
    world.run()
    shutil.copytree(world.log, tmp_path / "earlier")
    world.produce("orders", *ORDERS)
    first = world.run()[0]
    contents = world.contents()
    shutil.move(world.log, tmp_path / "latest")
    shutil.copytree(tmp_path / "earlier", world.log)
    with world.workers() as (_, workers), pytest.raises(IncompatibleStateError) as caught:
        workers[0].run_batch({}, 0, Commit(first.positions, first.version))
    says(
        caught.value, "application 'shop', task 0_0: the log's commit (version 000000000005-", "orders-0 5 < 10",
        f"is older than one that was made before (version {first.version}): the log lost data or is another one",
    )  # fmt: skip
    shutil.rmtree(world.log)
    shutil.move(tmp_path / "latest", world.log)
    with world.workers() as (_, workers):
        workers[0].run_batch({}, 0, Commit(first.positions, first.version))
    assert world.contents() == contents


def test_records_that_were_deleted_before_they_were_processed(make_world: MakeWorld, undisturbed: Contents) -> None:
    world = make_world()
    with world.open() as log:
        log.delete_topic("orders")
        log.create_topic("orders", 2, {"retention.ms": "1000"})
    world.produce("orders", *ORDERS)
    world.run()
    contents = world.contents()
    world.produce("orders", ("ann", "7", 10))
    world.produce("orders", ("ann", "8", 10**9))
    with world.open() as log:
        log.maintain(10**9)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        world.run()
    says(
        caught.value, "application 'shop', task 0_0: offset 5 of topic 'orders' partition 0 is out of range: the log " "has offsets from 6 up to, not including, 7",
        "`retention.ms`", "deleted before they were processed", "What was committed stays", "run it under a new application id",
    )  # fmt: skip
    with world.open() as log:
        assert log.committed("shop", [TopicPartition("orders", 0)]) == {TopicPartition("orders", 0): 5}
    found = world.contents()
    assert (found.stores, found.positions) == (contents.stores, contents.positions)
    assert contents.stores == undisturbed.stores


def test_a_position_behind_the_end_of_the_log(world: World, tmp_path: Path) -> None:
    """A log that was set back, with the positions of another: asked to read what it does not have."""
    world.run()
    first = TopicPartition("orders", 0)
    with world.open() as log, pytest.raises(OffsetOutOfRangeError) as caught:
        log.fetch(first, 6, 9, 1000)
    says(
        caught.value,
        "offset 6 of topic 'orders' partition 0 is out of range: the log has offsets from 0 up to, not including, 5",
    )
